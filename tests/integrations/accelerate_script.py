"""Trains the tiny task with Accelerate, and may kill itself: FOLDER WHEN AT.

WHEN is `seal` (right after a shard was written, before the state is saved) or `save` (after it).
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polo
from polo.integrations.accelerate import attached

EPOCHS = 4


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nothing(number: int) -> None:
    del number


def train(
    folder: Path,
    task: Any,
    *,
    accelerator: Any = (),
    resume_from: Path | None = None,
    sealed: Callable[[int], None] = nothing,
    saved: Callable[[int], None] = nothing,
    inside: Callable[[Any], None] = nothing,
    seed: int = 0,
) -> polo.Proof:
    torch.manual_seed(seed)
    # A process has one set of settings; here it plays several processes.
    AcceleratorState._reset_state(reset_partial_state=True)
    engine = Accelerator(cpu=True, **dict(accelerator))
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    columns = {name: torch.from_numpy(column) for name, column in task.train_columns().items()}
    data = DataLoader(
        TensorDataset(columns["point"], columns["label"]), batch_size=32, shuffle=True
    )
    model, optimizer, scheduler, data = engine.prepare(model, optimizer, scheduler, data)
    prover = polo.Prover(
        folder / "enrolment", key=folder / "alice.key", store=folder / "proof",
        on_seal=[lambda shard: sealed(shard.shard)],
    )  # fmt: skip
    try:
        with attached(
            prover, engine, model, optimizer, also={"scheduler": scheduler},
            evaluate=lambda: task.evaluate(engine.unwrap_model(model)), resume_from=resume_from,
        ):  # fmt: skip
            inside(engine)
            for epoch in range(prover.epoch, EPOCHS):
                for points, labels in data:
                    with engine.accumulate(model):
                        engine.backward(nn.functional.cross_entropy(model(points), labels))
                        if engine.sync_gradients:
                            engine.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        optimizer.zero_grad()
                scheduler.step()
                prover.end_epoch()
                engine.save_state(str(folder / f"state-{epoch}"))
                saved(epoch)
        return prover.finish()
    finally:
        prover.close()


def main() -> None:
    folder, when, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    path = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("shared", path)
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    sys.modules["shared"] = shared
    spec.loader.exec_module(shared)

    def end(number: int) -> None:
        if number == at:
            die()

    train(folder, shared.TinyTask(), **{"sealed" if when == "seal" else "saved": end})


if __name__ == "__main__":
    main()
