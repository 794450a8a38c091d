"""Steps whose outcome is known without taking them.

Where a model is sure of every sample beyond rounding, the gradient of its loss is exactly zero. A
step then is decay, momentum and mark alone, which take no pass through the model. The forger
chooses the data, so it chooses samples of which the stolen model is sure, and makes its scores
louder until it is sure enough. All that is left to hide is how the weights came there.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from polo_lab.attacks.effort.carrying import can_carry, loaded
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.machines import foreign
from polo_lab.attacks.effort.snapshot import Snapshot
from polo_lab.attacks.effort.sure_samples import choose
from polo_lab.attacks.state import State
from polo_lab.effort.case import Attempt, Case

FORWARD = 1 / 3
"""Share of a step that its pass forward takes."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Saturation:
    """Training on samples that the stolen model has nothing to learn from.

    Args:
        entry: How the weights come to the stolen model. `momentum`: one state of the optimizer is
            made up that carries them there. `aimed`: several are, on a machine that is said to be
            another one than the verifier's.
    """

    knowledge = "a finished model of the task"
    data = "chosen before the enrolment out of the task's own"
    budget = "choosing, the way there, and no backward pass after"

    def __init__(self, entry: str = "momentum") -> None:
        self._entry = entry
        self.name = f"saturated data, by {entry}"
        self.description = (
            "commits to samples of which the stolen model is sure beyond rounding, is carried "
            "there by a made-up state of the optimizer, and knows all further steps untaken"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        chosen = choose(case, case.victim.state)
        who = case.enrol("attacker with sure samples", chosen.columns)
        machine = foreign(case.device) if self._entry == "aimed" else None
        forgery = Forgery(case, folder, who=who, machine=machine)
        forgery.task.rows += FORWARD * chosen.rows
        forgery.begin()
        self._enter(forgery, case.victim.state, chosen.model)
        idle = 0
        for _ in range(forgery.shards):
            quiet = False
            while forgery.segments - forgery.segment > 1 and not quiet:
                quiet = _quiet(forgery)
            if quiet:
                idle += forgery.segments - forgery.segment
                _idle_through(forgery)
            else:
                _rescue(forgery, chosen.model)
            forgery.seal()
        total = forgery.shards * forgery.segments
        why = "" if can_carry(forgery) else "; this optimizer has no momentum to be carried by"
        note = f"{idle} of {total} segments known without a backward pass{why}"
        return forgery.finish(note, possible=idle > 0)

    def _enter(self, forgery: Forgery, quiet: State, loud: State) -> None:
        """Go to the stolen model first, and make it louder there.

        Half-way to a loud model the gradients would be, too.
        """
        every = forgery.recipe.every
        if self._entry == "aimed":
            for target in (quiet, quiet, loud, loud):
                forgery.train_and_edit(partial(loaded, forgery, target, every))
            forgery.train_and_edit(_still)
        else:
            half = forgery.segments // 2 - 2
            for target in (quiet, loud):
                forgery.train_and_edit(partial(loaded, forgery, target, half * every))
                forgery.train(half)


def _quiet(forgery: Forgery) -> bool:
    """Train one segment; returns whether all its gradients were zero."""
    loudest = 0.0
    own = forgery.task.own
    marked = set(forgery.carrier.names)

    def watched(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        nonlocal loudest
        own(model, optimizer, batch)
        # The mark's own gradient is on its carriers; what else there is shows the task's.
        for name, parameter in model.named_parameters():
            if name not in marked and parameter.grad is not None:
                size = float(parameter.grad.abs().max())
                loudest = max(loudest, size) if math.isfinite(size) else math.inf

    forgery.task.use(watched)
    forgery.train()
    forgery.task.use()
    return loudest == 0


def _idle_through(forgery: Forgery) -> None:
    """Train to the end of the shard without gradients."""
    forgery.task.use(_idle, _price(forgery.engine.model))
    forgery.train(forgery.segments - forgery.segment)
    forgery.task.use()


def _rescue(forgery: Forgery, loud: State) -> None:
    """Train the last segment; should training have diverged by its end, jump instead."""

    def mended(now: Snapshot) -> Snapshot:
        if all(bool(value.isfinite().all()) for value in now.model.values()):
            return now
        return _still(forgery.pressed(now.with_model(loud)))

    forgery.train_and_edit(mended)


def _idle(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
) -> None:
    """A step whose gradients are known to be zero."""
    model.train()
    if any(isinstance(part, _NORMS) for part in model.modules()):
        with torch.no_grad():
            model(next(value for name, value in sorted(batch.items()) if name != "label"))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()


def _price(model: nn.Module) -> float:
    return FORWARD if any(isinstance(part, _NORMS) for part in model.modules()) else 0.0


def _still(now: Snapshot) -> Snapshot:
    rest = {name: value.clone() for name, value in now.rest.items()}
    for name, value in rest.items():
        if name.partition("/")[0] != "step":
            value.zero_()
    return Snapshot(now.model, rest)
