"""Networks that fall silent: by a few inputs, or a rate, so large that most units die.

A unit whose inputs were once pushed far below zero passes nothing on any more and gets no gradient:
it stays as it is. Whoever commits to some samples a hundred times as large as the others, under
labels that make no sense, or proposes terms with far too high a rate, has honest steps do that to
most units; all further products leave them out, and come out to the bit. What is trained is a
smaller network than the task's.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.effort.case import Attempt, Case

_ALIGNED = 16
"""Units that are taken into a product come in such numbers: other widths have other kernels."""

_FEWEST = 16
"""Rows of a batch from which on units are left out."""

_TIMES = {"sgd": 5.0, "momentum": 5.0, "adam": 30.0, "adamw": 30.0}
"""Rates of the usual ones that silence most units, and still train."""


class LoudSamples:
    """Real training of a network that the data have made smaller.

    Units are left out of networks of three linear layers with dropout; others, and those whose
    inputs are whole numbers, are trained in full.

    Args:
        level: How large loud inputs are.
        share: Part of the samples that are loud.
    """

    knowledge = "the task"
    data = "the task's own, and a few made-up samples"
    budget = "every step, for the units that are left"

    def __init__(self, level: float = 75.0, share: float = 0.03) -> None:
        self._level, self._share = level, share
        self.name = f"loud samples, {share:.0%}"
        self.description = (
            f"commits to data of which {share:.0%} are far too large, has honest steps on them "
            "silence most units, and leaves those out of all products"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        return _trained(self.begun(case, folder))

    def begun(self, case: Case, folder: Path) -> Forgery:
        """A proof on such data, about to begin."""
        columns = {name: values.copy() for name, values in case.columns.items()}
        name = next(name for name in sorted(columns) if name != "label")
        if np.issubdtype(columns[name].dtype, np.floating):
            self._shout(columns[name], columns["label"], np.random.default_rng(case.seed + 77))
        who = case.enrol("attacker with loud samples", columns)
        return _narrowed(Forgery(case, folder, who=who))

    def _shout(self, inputs: np.ndarray, labels: np.ndarray, drawing: np.random.Generator) -> None:
        loud = drawing.random(len(inputs)) < self._share
        shape = (loud.sum(), *(1 for _ in inputs.shape[1:]))
        inputs[loud] = self._level * (1 + 0.01 * drawing.random(shape))
        labels[loud] = drawing.integers(0, labels.max() + 1, labels[loud].shape)


class HighRate:
    """Real training at a rate that silences most of a network, without a silent unit's work.

    The rate is the prover's proposal, and a verifier who knows the task may find it odd. Accuracy
    need not suffer. Networks are those of `LoudSamples`; others are trained in full.

    Args:
        times: How many times the usual rate, by optimizer.
    """

    name = "a rate that silences units"
    knowledge = "the task"
    data = "the task's own"
    budget = "every step, for the units that are left"
    description = (
        "has terms made with so high a rate that honest steps silence most units, and leaves those "
        "out of all products"
    )

    def __init__(self, times: Mapping[str, float] = _TIMES) -> None:
        self._times = times

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        plan = replace(case.plan, rate=case.plan.rate * self._times[case.plan.optimizer])
        who = case.enrol("attacker with a high rate", plan=plan)
        return _trained(_narrowed(Forgery(case, folder, who=who, plan=plan)))


def _narrowed(forgery: Forgery) -> Forgery:
    """The forgery, whose steps leave silent units out where they know how to."""
    if _Narrow.fits(forgery.engine.model):
        forgery.task.use(_Narrow(forgery))
    return forgery


def _trained(forgery: Forgery) -> Attempt:
    """All steps, as they are declared."""
    forgery.begin()
    for _ in range(forgery.shards):
        forgery.train(forgery.segments)
        forgery.seal()
    narrow = isinstance(forgery.task.step, _Narrow)
    return forgery.finish("" if narrow else "trained in full", possible=narrow)


class _Narrow:
    """A step that leaves out the units of the first layer which no sample of its batch excites.

    Args:
        forgery: The proof; what a step costs is told to its task.
    """

    def __init__(self, forgery: Forgery) -> None:
        self._task = forgery.task

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether a model is one of three linear layers with dropout."""
        kinds = [type(layer) for layer in model.children()]
        hidden = [nn.Linear, nn.ReLU, nn.Dropout]
        return kinds == [nn.Flatten, *hidden, *hidden, nn.Linear]

    def __call__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        rows = len(batch["label"])
        if rows < _FEWEST:
            self._task.own(model, optimizer, batch)
            return
        model.train()
        optimizer.zero_grad()
        inputs = next(value for name, value in sorted(batch.items()) if name != "label").flatten(1)
        first, second, last = (part for part in model.children() if isinstance(part, nn.Linear))
        chance = next(part.p for part in model.children() if isinstance(part, nn.Dropout))
        with torch.no_grad():
            excited = functional.relu(functional.linear(inputs, first.weight, first.bias))
            live = _live(excited)
            drop1 = functional.dropout(torch.ones_like(excited), chance)[:, live]
            excited = excited[:, live]
            hidden1 = excited * drop1
            weight2 = second.weight[:, live]
            hidden2 = functional.relu(functional.linear(hidden1, weight2, second.bias))
            drop2 = functional.dropout(torch.ones_like(hidden2), chance)
            after = hidden2 * drop2
            scores = functional.linear(after, last.weight, last.bias)
        scores.requires_grad_()
        (down3,) = torch.autograd.grad(functional.cross_entropy(scores, batch["label"]), scores)
        with torch.no_grad():
            last.weight.grad, last.bias.grad = down3.t().mm(after), down3.sum(0)
            down2 = down3.mm(last.weight) * drop2 * (hidden2 > 0)
            second.weight.grad = torch.zeros_like(second.weight)
            second.weight.grad[:, live] = hidden1.t().mm(down2).t()
            second.bias.grad = down2.sum(0)
            down1 = down2.mm(weight2) * drop1 * (excited > 0)
            spread = torch.zeros(rows, first.out_features)
            spread[:, live] = down1
            first.weight.grad = torch.zeros_like(first.weight)
            first.weight.grad[live] = inputs.t().mm(down1).t()
            first.bias.grad = spread.sum(0)
        self._task.price = _share(first, second, last, len(live))
        optimizer.step()


def _live(excited: torch.Tensor) -> torch.Tensor:
    """Units that some sample excites, and as many others as make the number an aligned one."""
    live = (excited > 0).any(0)
    idle = (~live).nonzero().flatten()
    live[idle[: -int(live.sum()) % _ALIGNED]] = True
    return live.nonzero().flatten()


def _share(first: nn.Linear, second: nn.Linear, last: nn.Linear, live: int) -> float:
    """Multiplications of a step with so many units, as a part of a step with all."""

    def cost(units: int) -> int:
        inner = 3 * units * second.out_features + 3 * last.weight.numel()
        return first.weight.numel() + first.in_features * units + inner

    return cost(live) / cost(first.out_features)
