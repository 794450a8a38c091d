"""A buyer checks a proof without torch, by its openings alone.

The trainer keeps a thin proof: the openings of all shards and the last model. The buyer's part
runs in a process in which torch cannot be imported. Without torch accuracy cannot be tested; the
verdict says so, and the buyer must ask for that explicitly.
"""

import subprocess
import sys
from pathlib import Path

from common import enrolled, workplace

import polo

BUYER = """
import sys
sys.modules["torch"] = None  # as on a machine without torch
import polo
from polo.verifier import Status

proof, issuer = sys.argv[1:]
verdict = polo.verify(proof, trust=issuer, policy=polo.Policy(accuracy="none"))
for shard, check in verdict.per_shard("mark").items():
    print(f"shard {shard}: {check.detail}")
for check in verdict.of(Status.NOTE):
    print("note:", check.sentence())
print(verdict.headline())
sys.exit(verdict.outcome)
"""


def train_thin(folder: Path) -> tuple[Path, Path]:
    """Play the trainer: a short run with a thin proof."""
    import torch

    from polo.tasks.digits import Digits

    task = Digits()
    enrolment, key, issuer = enrolled(folder, task)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(enrolment, key=key, store=folder / "proof", retention="thin")
    with prover.attach(model, optimizer):
        for _ in range(6):
            task.train_epoch(model, optimizer)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    return prover.finish().path, issuer


def main() -> None:
    """Train, then check as somebody else."""
    proof, issuer = train_thin(workplace())
    size = sum(file.stat().st_size for file in proof.rglob("*") if file.is_file())
    print(f"the proof takes {size / 1000:.0f} kB", flush=True)
    buyer = subprocess.run([sys.executable, "-c", BUYER, str(proof), str(issuer)], check=False)
    raise SystemExit(buyer.returncode)


if __name__ == "__main__":
    main()
