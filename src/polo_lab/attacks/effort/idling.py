"""No-op steps: segments that are declared and change nothing, or not what they should."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import copied
from polo_lab.effort.case import Attempt, Case

KINDS = ("identity", "no rate", "no loss", "one batch")
REAL = 0.1
"""Part of the segments of a shard that are trained as declared."""


class Idling:
    """A little training in every shard, then segments that do next to nothing.

    Args:
        kind: `identity` repeats the state, `no rate` steps at a rate of zero, `no loss` steps on
            the mark alone, `one batch` takes a small batch again and again.
    """

    knowledge = "the task"
    data = "the task's own"
    budget = f"{REAL:.0%} of the steps, and small batches if any"

    def __init__(self, kind: str = "identity") -> None:
        self._kind = kind
        self.name = f"idle steps, {kind}"
        self.description = {
            "identity": "trains a little, and declares the same state again and again",
            "no rate": "trains a little, and then steps at a learning rate of zero",
            "no loss": "trains a little, and then steps on the mark's own gradient alone",
            "one batch": "trains a little, and then on a small batch that it keeps in hand",
        }[kind]

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        forgery = Forgery(case, folder)
        forgery.begin()
        batch = forgery.batch
        for _ in range(forgery.shards):
            forgery.train(max(1, round(REAL * forgery.segments)))
            self._idle(forgery)
            forgery.task.use()
            forgery.batch = batch
            forgery.seal()
        return forgery.finish()

    def _idle(self, forgery: Forgery) -> None:
        left = forgery.segments - forgery.segment
        if self._kind == "identity":
            end = forgery.pressed(forgery.now)
            for _ in range(left - 1):
                forgery.jump(forgery.now)
            forgery.jump(end)
            return
        if self._kind == "one batch":
            small = forgery.engine.order.batch(0)[: max(4, forgery.recipe.batch // 16)]
            known = forgery.who.source.batch(small)
            forgery.batch = lambda indices: known
        else:
            forgery.task.use(_markless if self._kind == "no rate" else _lossless, price=0.0)
        for _ in range(left - 1):
            forgery.train_and_edit(lambda now: now)
        forgery.train_and_edit(forgery.pressed)


def _lossless(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
) -> None:
    del batch
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()


def _markless(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
) -> None:
    before = copied(dict(model.named_parameters()))
    _lossless(model, optimizer, batch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
