"""A registry on this machine: every shard is in its log before the next mark can be known.

The registry signs the terms and hands out the nonces, one for each commitment. The lines marked
with `+` are all that differs from training offline. `polo.verify` needs no registry afterwards:
the receipts and their places in the log are in the proof.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from common import workplace
from torch import nn

import polo
from polo.tasks.digits import Digits


@contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Run `polo registry serve`, as an operator would; gives its address."""
    command = [sys.executable, "-m", "polo", "registry", "serve", "--data", str(folder)]
    with (folder.parent / "registry.log").open("wb") as log:
        server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=log)
        try:
            assert server.stdout is not None
            words = server.stdout.readline().decode().split()
            yield words[-1]
        finally:
            server.terminate()
            server.communicate()


def train(folder: Path, task: Digits) -> polo.Proof:
    """An ordinary loop."""
    images, labels = task.train_data
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prover = polo.Prover(
        folder / "enrolment", key=folder / "trainer.key", store=folder / "proof",
        on_outage="wait",  # +
    )  # fmt: skip
    with prover.attach(model, optimizer):
        for _ in range(prover.epoch, 6):
            for batch in torch.randperm(len(labels)).split(64):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            prover.end_epoch(evaluate=lambda: task.evaluate(model))
    return prover.finish()  # Closes the chain at the registry, too.


def main() -> None:
    """Enrol, train, verify."""
    folder, task = workplace(), Digits()
    polo.Identity.generate().save(folder / "trainer.key")
    with running_registry(folder / "registry") as url:
        with polo.Client(url, folder / "trainer.key") as client:  # +
            client.register("Alice")  # +
            enrolment = client.enrol("digits").save(folder / "enrolment")  # +
        proof = train(folder, task)

    for shard in proof.manifest.shards:
        assert shard.receipt is not None
        print(f"shard {shard.shard}: entry {shard.receipt.index} of {shard.receipt.origin}")
    verdict = polo.verify(proof.path, trust=enrolment.record.issuer)
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()
