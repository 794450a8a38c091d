"""Training is killed; the next start goes on from the last sealed shard.

The first process is killed by the system in the middle of an epoch. The second one runs the very
same code: `attach` finds the proof, puts weights, optimizer, scheduler and random generators back,
and `prover.epoch` says where to go on.
"""

import multiprocessing
import os
import signal
from pathlib import Path

import torch
from common import enrolled, workplace

import polo
from polo.tasks.digits import Digits

EPOCHS = 6


def train(folder: Path, die_in_epoch: int | None) -> None:
    """The training script; it does not know whether it is the first or the second start."""
    task = Digits()
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    prover = polo.Prover(folder / "enrolment", key=folder / "trainer.key", store=folder / "proof")
    with prover.attach(model, optimizer, also={"scheduler": scheduler}):
        print(f"start at epoch {prover.epoch} with {prover.shards} sealed shards", flush=True)
        for epoch in range(prover.epoch, EPOCHS):
            task.train_epoch(model, optimizer)
            if epoch == die_in_epoch:
                os.kill(os.getpid(), signal.SIGKILL)
            scheduler.step()
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    proof = prover.finish()
    print(f"{proof.shards} shards, {proof.outside} steps outside", flush=True)


def main() -> None:
    """Start, kill, start again, verify."""
    folder = workplace()
    _, _, issuer = enrolled(folder, Digits())
    processes = multiprocessing.get_context("spawn")
    for die_in_epoch in (3, None):
        process = processes.Process(target=train, args=(folder, die_in_epoch))
        process.start()
        process.join()
        print(f"the process ended with {process.exitcode}", flush=True)
    verdict = polo.verify(folder / "proof", trust=issuer)
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()
