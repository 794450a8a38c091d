"""Trains, answers or verifies in a process of its own, for test_replay_processes.py.

Reads orders from standard input, one JSON object a line, and answers each with one JSON line.
{"train": epochs} trains until so many shards are sealed; with "at": n it does so in a child that
kills itself at its n-th call that touches the disk. {"answer": true} asks for everything and
answers it, {"verify": true} verifies that.

After the two folders the command line may name a model (`tiny` or `resnet`), a device, and which
kernels it takes there: `repeating` ones, or `any`.
"""

import copy
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import polo
from polo.evidence.replay import answer
from polo.evidence.replay import challenge as challenges
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.recipe import Recipe
from polo.protocol import nonces, signing
from polo.protocol.challenge import Challenge, Place
from polo.protocol.records import Enrolment
from polo.storage import atomic
from polo.storage.folder import ProofFolder
from polo.tasks.training import Column
from polo_lab.models.resnet import resnet18

FOLDER = Path(sys.argv[1])
MODEL, DEVICE, KERNELS = sys.argv[3:] or ("tiny", "cpu", "any")
sys.path.insert(0, sys.argv[2])
import conftest  # noqa: E402

RECIPE = Recipe(
    samples=256, batch=32, every=3, draws=3, top=1, seals=1, optimizer="adam", rate=0.003
)
ALICE, ISSUER = conftest.identity(1), conftest.identity(2)


def build() -> nn.Module:
    """Dropout and statistics: all that could go astray between two processes."""
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 64),
        nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip


class Pictures(conftest.TinyTask):
    """The points as pictures of 16 × 16, in bf16 where there is a GPU; a floor that all reach."""

    name, floor = "pictures", (0.0,)
    columns = (Column("label", "I64", ()), Column("picture", "F32", (3, 16, 16)))

    def _pictures(self) -> tuple[torch.Tensor, torch.Tensor]:
        points, labels = self._points
        noise = torch.randn(len(points), 3, 16, 16, generator=torch.Generator().manual_seed(8))
        return points.view(-1, 1, 4, 4).repeat(1, 3, 4, 4) + noise, labels

    def train_columns(self) -> dict[str, np.ndarray]:
        """What training sees."""
        pictures, labels = (part[:256].numpy() for part in self._pictures())
        return {"label": labels, "picture": pictures}

    def train_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        """One step on a batch of pictures."""
        device = next(model.parameters()).device
        model.train()
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(batch["picture"].to(device))
        nn.functional.cross_entropy(scores.float(), batch["label"].to(device)).backward()
        optimizer.step()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on pictures that training never sees, where the model is."""
        pictures, labels = (part[256:288] for part in self._pictures())
        training, device = model.training, next(model.parameters()).device
        right = model.eval()(pictures.to(device)).argmax(1).cpu() == labels
        model.train(training)
        return float(right.double().mean())


def build_resnet() -> nn.Module:
    """ResNet-18 for four classes."""
    return resnet18(classes=4)


TASK = Pictures(build_resnet) if MODEL == "resnet" else conftest.TinyTask(build)


def train(epochs: int, at: int = 0) -> dict[str, Any]:
    data = DataSource(TASK.train_columns(), secret=bytes(32))
    terms = polo.make_terms(
        TASK, bits=128, shards=20, strength=0.02, start="derived", replay=RECIPE, data=data.root
    )
    commitment, drawn = nonces.draw(20, random.Random(0).randbytes)
    record = Enrolment(terms, ALICE.public_key, commitment, 1_700_000_000, ISSUER.public_key)
    enrolment = polo.OfflineEnrolment(signing.sign(record, ISSUER), drawn)
    model = TASK.build_model().to(DEVICE)
    polo.draw_start(model, enrolment)
    optimizer = RECIPE.optimizer(model)
    if at:
        die_at(at)
    prover = polo.Prover(enrolment, key=ALICE, store=FOLDER / "proof", data=data)
    with prover.attach(model, optimizer, evaluate=lambda: TASK.evaluate(on_cpu(model))):
        while prover.shards < epochs:
            for numbers in prover.sampler:
                TASK.train_step(model, optimizer, data.batch(numbers))
            prover.end_epoch()
    prover.close()
    return {"shards": prover.shards}


def on_cpu(model: nn.Module) -> nn.Module:
    """The model itself, or a copy: the tiny task has its points on the CPU."""
    return model if DEVICE == "cpu" else copy.deepcopy(model).cpu()


def answered() -> dict[str, Any]:
    data = DataSource(TASK.train_columns(), secret=bytes(32))
    manifest = ProofFolder(FOLDER / "proof").manifest()
    places = [
        Place(shard.shard, at)
        for shard in manifest.shards
        for at in range(RECIPE.segments(shard.steps))
    ]
    numbers = tuple(shard.shard for shard in manifest.shards)
    asked = Challenge(manifest.digest, tuple(places), numbers, False, 0)
    challenges.save(asked, FOLDER / "challenge.json")
    answer.answer(FOLDER / "proof", asked, task=TASK, data=data, key=ALICE, out=FOLDER / "answer")
    return {"answered": len(places)}


def verified() -> dict[str, Any]:
    verdict = polo.verify(
        FOLDER / "proof",
        trust=ISSUER.public_key,
        task=TASK,
        challenge=challenges.load(FOLDER / "challenge.json"),
        answer=FOLDER / "answer",
    )
    figures = [check.figures for check in verdict.checks if check.name == "draw"]
    return {"said": verdict.headline(), "figures": dict(figures[0]) if figures else {}}


def die_at(count: int) -> None:
    """Die at the n-th sync or rename, before it is done."""
    left = count

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    atomic.os.fsync = dying(os.fsync)
    Path.replace = dying(Path.replace)  # type: ignore[method-assign]
    Path.unlink = dying(Path.unlink)  # type: ignore[method-assign]


def obey(order: dict[str, Any]) -> dict[str, Any]:
    if "train" in order:
        return train(order["train"], order.get("at", 0))
    return answered() if "answer" in order else verified()


def main() -> None:
    torch.set_num_threads(1)
    # Who replays takes this over from the record.
    torch.backends.cudnn.deterministic = KERNELS == "repeating"
    # What a first optimizer imports is imported once, before the forks.
    RECIPE.optimizer(TASK.build_model())
    for line in sys.stdin:
        order = json.loads(line)
        if "at" not in order:
            print(json.dumps(obey(order)), flush=True)
            continue
        child = os.fork()
        if child == 0:
            obey(order)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"killed": os.WIFSIGNALED(status)}), flush=True)


if __name__ == "__main__":
    main()
