"""Make the golden proof of a model that was bought: run once, then kept for ever.

    python vectors/make_golden_transfer.py

`golden/v1-transfer` is the buyer's proof, with the seller's inside; what `make_golden.py` says of
the other golden proofs holds for it too. Its issuer is `golden/issuer-transfer.pub`.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import polo
from polo.keys import save_public
from polo.storage import transfers

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
NAME = "v1-transfer"


def train(
    task: Any, enrolment: Any, key: polo.Identity, store: Path, *, parent: Path | None
) -> None:
    """Train a thin proof: three epochs, or one from a model that was bought."""
    model = task.build_model()
    if parent:
        polo.load_weights(model, parent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 if parent else 0.1, momentum=0.9)
    prover = polo.Prover(enrolment, key=key, store=store, retention="thin")
    with prover.attach(model, optimizer):
        for _ in range(1 if parent else 3):
            task.train_epoch(model, optimizer)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    prover.finish()


def make(folder: Path) -> tuple[Path, polo.Identity]:
    """Train, sell, and train on; returns the buyer's proof and the issuer."""
    from vectors.golden_task import GoldenDigits

    task = GoldenDigits()
    torch.manual_seed(3)
    issuer, seller, buyer = (polo.Identity.generate() for _ in range(3))
    options: dict[str, Any] = {"bits": 128, "block": 64, "fewest_steps": 10, "strength": 0.01}
    terms = polo.make_terms(task, shards=3, **options)
    enrolment = polo.enrol(terms, identity=seller.public_key, issuer=issuer)
    train(task, enrolment, seller, folder / "seller", parent=None)
    root = polo.load_weights(task.build_model(), folder / "seller")
    terms = polo.make_terms(task, shards=3, parent=root, **options)
    enrolment = polo.enrol(terms, identity=buyer.public_key, issuer=issuer)
    train(task, enrolment, buyer, folder / "buyer", parent=folder / "seller")
    asked = transfers.request(folder / "buyer", folder / "seller", buyer)
    given = transfers.sign(asked, folder / "seller", seller)
    transfers.complete(folder / "buyer", given, folder / "seller", buyer)
    verdict = polo.verify(folder / "buyer", trust=issuer.public_key, task=task)
    if verdict.outcome is not polo.Outcome.ACCEPTED or len(verdict.owners) != 2:
        raise SystemExit(verdict.headline())
    return folder / "buyer", issuer


def main() -> None:
    """Make the proof, unless it exists."""
    if (GOLDEN / NAME).exists():
        raise SystemExit(f"{GOLDEN / NAME} is there already; it is never made again")
    sys.path.insert(0, str(HERE.parent))
    with tempfile.TemporaryDirectory() as temporary:
        proof, issuer = make(Path(temporary))
        shutil.copytree(proof, GOLDEN / NAME)
    save_public(issuer.public_key, GOLDEN / "issuer-transfer.pub")


if __name__ == "__main__":
    main()
