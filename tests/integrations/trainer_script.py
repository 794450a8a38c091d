"""Trains the tiny task with the Transformers Trainer, and may kill itself: FOLDER WHEN AT OPTIONS.

WHEN is `step` (the Trainer's), `seal` (right after a shard was written, before the Trainer saves)
or `never`.
"""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from polo.integrations.transformers import PoloCallback


class Tiny(nn.Module):
    """The tiny model, called as the Trainer calls models."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.net(points)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


class Killing(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def data_of(task: Any) -> list[dict[str, Any]]:
    found = task.train_columns()
    return [
        {"points": point, "labels": int(label)}
        for point, label in zip(found["point"], found["label"], strict=True)
    ]


def make(
    folder: Path,
    task: Any,
    *,
    callbacks: Any = (),
    polo: Any = (),
    seed: int = 0,
    net: Any = None,
    **options: Any,
) -> tuple[Trainer, PoloCallback | None]:
    torch.manual_seed(seed)
    callback = None
    if polo is not None:
        callback = PoloCallback(
            folder / "enrolment", key=folder / "alice.key", store=folder / "proof",
            evaluate=task.evaluate, **dict(polo),
        )  # fmt: skip
    chosen = {"save_strategy": "epoch", "num_train_epochs": 4, **options}
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=32, learning_rate=1e-2,
        use_cpu=True, dataloader_pin_memory=False, report_to="none", disable_tqdm=True,
        logging_strategy="no", **chosen,
    )  # fmt: skip
    Path(arguments.output_dir).mkdir(exist_ok=True)
    trainer = Trainer(
        Tiny(net or task.build_model()), arguments, train_dataset=data_of(task),
        eval_dataset=data_of(task)[:32], callbacks=[*([callback] if callback else []), *callbacks],
    )  # fmt: skip
    return trainer, callback


def train(folder: Path, task: Any, *, checkpoint: Any = "last", **options: Any) -> Any:
    trainer, callback = make(folder, task, **options)
    if checkpoint == "last":
        checkpoint = get_last_checkpoint(str(folder / "trainer"))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return callback.proof if callback else None


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
