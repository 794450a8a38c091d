"""Make the golden proofs of format version 1: run once, then kept for ever.

    python vectors/make_golden.py

Every later release must still accept them. They are the work of a real, short training, so they
are not reproduced byte for byte: keys and nonces are drawn, and floating point depends on the
machine. The script refuses to overwrite. A new format version gets folders of its own.
"""

import shutil
import sys
from pathlib import Path

import torch

import polo
from polo.keys import save_public

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
EPOCHS = 3


def make(issuer: polo.Identity, name: str, *, retention: str, deltas: bool, seed: int) -> None:
    """Train once and leave the proof in `golden/<name>`.

    Args:
        issuer: Who signs the enrolment.
        name: Name of the folder.
        retention: What `polo.Prover` keeps.
        deltas: Whether older checkpoints are stored as deltas.
        seed: Where torch's generator starts.
    """
    from vectors.golden_task import GoldenDigits

    task = GoldenDigits()
    torch.manual_seed(seed)
    prover_key = polo.Identity.generate()
    terms = polo.make_terms(task, bits=128, block=64, shards=EPOCHS, fewest_steps=10, strength=0.01)
    enrolment = polo.enrol(terms, identity=prover_key.public_key, issuer=issuer)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = GOLDEN / name
    prover = polo.Prover(enrolment, key=prover_key, store=store, retention=retention, deltas=deltas)
    with prover.attach(model, optimizer):
        for _ in range(EPOCHS):
            task.train_epoch(model, optimizer)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    proof = prover.finish()
    # Lock, secret and optimizer belong to the prover; they are no part of a proof.
    shutil.rmtree(store.with_name(store.name + ".state"))
    verdict = polo.verify(store, trust=issuer.public_key, task=task)
    if proof.shards != EPOCHS or verdict.outcome is not polo.Outcome.ACCEPTED:
        raise SystemExit(f"{name}: {proof.shards} shards, {verdict.headline()}")


def main() -> None:
    """Make both proofs, unless they exist."""
    if GOLDEN.exists() and any(GOLDEN.iterdir()):
        raise SystemExit(f"{GOLDEN} holds golden proofs already; they are never made again")
    sys.path.insert(0, str(HERE.parent))
    GOLDEN.mkdir(exist_ok=True)
    issuer = polo.Identity.generate()
    save_public(issuer.public_key, GOLDEN / "issuer.pub")
    make(issuer, "v1", retention="all", deltas=True, seed=1)
    make(issuer, "v1-thin", retention="thin", deltas=False, seed=2)


if __name__ == "__main__":
    main()
