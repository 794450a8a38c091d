"""Effort: steps that the verifier draws are run again, and must come out the same.

The trainer commits to the data before the enrolment and takes batches from the prover's sampler.
Afterwards the verifier draws, the trainer answers, and the verifier runs the drawn steps itself.
"""

from pathlib import Path
from typing import Any

from common import workplace
from torch.utils.data import DataLoader

import polo
from polo.evidence.replay import challenge
from polo.evidence.replay.answer import answer
from polo.tasks.digits import Digits


class Rows:
    """A map-style data set over arrays; `index.seed` is there for augmentation."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}


def enrolled(folder: Path, task: Digits, data: polo.DataSource) -> Path:
    """Play the issuer, who is told the root of the data and fixes how every step is done."""
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    trainer.save(folder / "trainer.key")
    polo.keys.save_public(issuer.public_key, folder / "issuer.pub")
    recipe = polo.Recipe(samples=data.samples, batch=64, rate=0.02, every=2, draws=20, seals=2)
    terms = polo.make_terms(
        task,
        shards=6,
        fewest_steps=recipe.steps_per_pass,
        start="derived",
        progress=True,
        replay=recipe,
        data=data.root,
    )
    polo.enrol(terms, identity=trainer.public_key, issuer=issuer).save(folder / "enrolment")
    return folder / "enrolment"


def main() -> None:
    """Commit to data, train, draw, answer, verify."""
    folder, task = workplace(), Digits()
    columns = task.train_columns()
    data = polo.DataSource.create(folder / "data", columns)
    enrolment = enrolled(folder, task, data)

    prover = polo.Prover(enrolment, key=folder / "trainer.key", store=folder / "proof", data=data)
    model = task.build_model()
    polo.draw_start(model, enrolment)
    optimizer = prover.recipe.optimizer(model)
    with prover.attach(model, optimizer):
        loader = DataLoader(Rows(columns), batch_sampler=prover.sampler, num_workers=2)
        for _ in range(6):
            for batch in loader:
                task.train_step(model, optimizer, batch)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    proof = prover.finish().path

    # The verifier, once the proof is closed. The file goes to the trainer.
    drawn = challenge.draw(proof)
    challenge.save(drawn, folder / "challenge.json")
    print(f"drawn: {len(drawn.segments)} segments and {len(drawn.sealings)} sealings")

    # The trainer. The folder goes to the verifier.
    key = polo.Identity.load(folder / "trainer.key")
    shown = answer(proof, drawn, task=task, data=data, key=key, out=folder / "answer")

    verdict = polo.verify(proof, trust=folder / "issuer.pub", challenge=drawn, answer=shown)
    print(verdict.headline())
    print("but:", verdict.caution)
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()
