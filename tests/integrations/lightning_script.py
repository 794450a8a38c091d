"""Trains the tiny task with Lightning, and may kill itself: FOLDER WHEN AT OPTIONS.

WHEN is `step` (Lightning's global step) or `seal` (right after a shard was written).
"""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from polo.integrations.lightning import PoloCallback


class Tiny(LightningModule):
    """The tiny model; `manual` steps by itself, `two` has a second optimizer for a dummy."""

    def __init__(self, net: nn.Module, *, manual: bool = False, two: bool = False) -> None:
        super().__init__()
        self.net = net
        self.automatic_optimization = not manual
        self.aside = nn.Linear(2, 2) if two else None

    def training_step(self, batch: Any, at: int) -> torch.Tensor:
        points, labels = batch
        loss = nn.functional.cross_entropy(self.net(points), labels)
        if not self.automatic_optimization:
            found = self.optimizers()
            optimizer = found[0] if isinstance(found, list) else found
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        if self.aside is not None:
            return [optimizer, torch.optim.SGD(self.aside.parameters(), lr=0.1)]
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]


class Validated(Tiny):
    def validation_step(self, batch: Any, at: int) -> None:
        self.log("right", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())


class Killing(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *rest: Any) -> None:
        if trainer.global_step == self.step:
            die()


class Raising(Callback):
    def on_train_batch_end(self, trainer: Trainer, *rest: Any) -> None:
        if trainer.global_step == 11:
            raise RuntimeError("the disk is full")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(
    folder: Path,
    task: Any,
    *,
    callbacks: Any = (),
    polo: Any = (),
    seed: int = 0,
    checkpoint: Any = "last",
    module: Any = (),
    saving: Any = (),
    validate: bool = False,
    kind: Any = None,
    **options: Any,
) -> Any:
    torch.manual_seed(seed)
    callback = PoloCallback(
        folder / "enrolment", key=folder / "alice.key", store=folder / "proof",
        evaluate=task.evaluate, **dict(polo),
    )  # fmt: skip
    saver = ModelCheckpoint(folder / "lightning", save_last=True, **dict(saving))
    trainer = Trainer(
        callbacks=[saver, callback, *callbacks], accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        **{"max_epochs": 4, **options},
    )  # fmt: skip
    columns = {name: torch.from_numpy(column) for name, column in task.train_columns().items()}
    # In order: where an order of samples begins again after a kill is the data loader's affair.
    points = TensorDataset(columns["point"], columns["label"])
    loader = DataLoader(points, batch_size=32)
    last = folder / "lightning" / "last.ckpt"
    if checkpoint == "last":
        checkpoint = last if last.exists() else None
    kind = kind or (Validated if validate else Tiny)
    model = kind(task.build_model(), **dict(module))
    trainer.fit(model, loader, loader if validate else None, ckpt_path=checkpoint)
    return callback.proof


def main() -> None:
    folder, when, at, options = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    path = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("shared", path)
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    sys.modules["shared"] = shared
    spec.loader.exec_module(shared)
    callbacks = [Killing(at)] if when == "step" else []
    sealing = {"on_seal": [lambda shard: die() if when == "seal" and shard.shard == at else None]}
    more = json.loads(options[0]) if options else {}
    train(folder, shared.TinyTask(), callbacks=callbacks, polo=sealing, **more)


if __name__ == "__main__":
    main()
