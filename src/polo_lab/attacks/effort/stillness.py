"""Weights that stand still: by a rate that has come down so far that rounding swallows most steps.

Plain SGD keeps nothing but weights. At a millionth of the usual rate those move by their last
digits, if at all, and so do the gradients of every sample. Whoever computes these once for every
sample foresees all steps of the next passes over the data, to the bit; and weights that cannot move
need not even be looked at.
"""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from polo.embedding.embedder import Embedder
from polo.evidence.replay.recipe import Recipe
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.machines import foreign
from polo_lab.attacks.effort.walking import rows_meet
from polo_lab.effort.case import Attempt, Case
from polo_lab.effort.plan import Plan

_RATE = 0.05
_STILL, _SLOW, _EVEN = 6e-7, 3e-4, 0.012
"""Parts of the rate that are left: where rounding swallows steps, where an allowance does, and
where that forgives what straight lines leave."""

_REAL, _PASSES, _LONGER = 4, 16, 14
"""Passes over the data that are trained, and those of every shard; with straight lines."""

_SUMS = 1 / 3
"""Sums over rows, as a part of a step."""

_FAR = 6.0
"""Deviations of a mean gradient that a batch's own is taken to keep within."""

_HALF = 0.24
"""A move below half of a weight's last digit is swallowed; at the edge of a power of two, below a
quarter."""


@dataclass(frozen=True)
class _Falling(Plan):
    """A plan whose rate falls far after a few steps.

    Attributes:
        fall: Part of the rate that is left.
    """

    fall: float = _STILL

    def recipe(self, samples: int) -> Recipe:
        """See `Plan`."""
        usual, real = super().recipe(samples), _REAL * -(-samples // self.batch)
        return usual.changed(schedule="steps", milestones=(real,), gamma=self.fall)


class StandingStill:
    """Real training for a few passes, and then one pass a shard that stands for all of it.

    Rate and schedule are the prover's proposal. Where rows meet in the model, it is trained in
    full. What it costs is counted as a part of what its own terms ask for.

    Args:
        near: Whether the rate falls less far, steps are foreseen nearly, and a machine is named
            that no verifier has.
    """

    knowledge = "the task"
    data = "the task's own"
    budget = "a few passes, then one in each shard, and sums for weights that can move"

    def __init__(self, *, near: bool = False) -> None:
        self._near = near
        self.name = "a rate at which weights stand still" + ", nearly" * near
        self.description = (
            "has terms made with plain SGD and a rate that falls so far that "
            f"{'an allowance' if near else 'rounding'} swallows most steps, and foresees those of "
            "a shard by the gradients of one pass"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        possible = _foreseen(case)
        plan = self._plan(case.plan) if possible else case.plan
        who = case.enrol("attacker who stands still", plan=plan)
        machine = foreign(case.device) if self._near else None
        forgery = Forgery(case, folder, who=who, plan=plan, machine=machine)
        foreseeing = self._foreseeing(forgery) if possible else None
        forgery.begin()
        for _ in range(forgery.shards):
            for _ in range(forgery.segments):
                if foreseeing:
                    foreseeing.prepare()
                # States are kept: what foresees them is another thing in every shard.
                forgery.train_and_edit(lambda state: state)
            forgery.seal()
        made = forgery.finish("" if possible else "trained in full", possible=possible)
        share = case.steps / plan.steps(case.samples)
        return replace(made, gradient_steps=made.gradient_steps * share)

    def _plan(self, usual: Plan) -> Plan:
        return _fallen(usual, _SLOW if self._near else _STILL)

    def _foreseeing(self, forgery: Forgery) -> "_Foreseeing":
        return _Foreseeing(forgery)


class StraightLines(StandingStill):
    """Two passes a shard, at weights of its beginning and of its foreseen end.

    In between, gradients of samples are taken to change evenly: that is nearer than old ones, where
    an allowance forgives what is left.
    """

    budget = "a few passes, then two in each shard, and sums over rows"

    def __init__(self) -> None:
        super().__init__(near=True)
        self.name = "straight lines between gradients"
        self.description = (
            "has terms made with plain SGD and a rate that falls, and foresees the steps of a "
            "shard by the gradients of two passes and straight lines between them, near enough for "
            "an allowance"
        )

    def _plan(self, usual: Plan) -> Plan:
        return replace(_fallen(usual, _EVEN), passes=_LONGER, every=1)

    def _foreseeing(self, forgery: Forgery) -> "_Foreseeing":
        return _Between(forgery)


def _foreseen(case: Case) -> bool:
    """Whether the gradients of samples can be taken one by one: no rows meet, inputs are floats."""
    inputs = next(value for name, value in sorted(case.columns.items()) if name != "label")
    return np.issubdtype(inputs.dtype, np.floating) and not rows_meet(case.task.build_model())


def _fallen(plan: Plan, fall: float) -> Plan:
    """A plan like another one, but for its rates, and the length of shards."""
    own = asdict(plan) | {"optimizer": "sgd", "rate": _RATE, "schedule": "constant"}
    return _Falling(**own | {"passes": _PASSES, "fall": fall})


class _Foreseeing:
    """Steps by the gradients of every sample, once the rate has fallen.

    Args:
        forgery: The proof; what steps cost is told to its task.
    """

    def __init__(self, forgery: Forgery) -> None:
        self._forgery = forgery
        self._parameters = dict(forgery.engine.model.named_parameters())
        self._real = _REAL * forgery.recipe.steps_per_pass
        self._shard = 0
        self._at = np.zeros(0, dtype=np.int64)
        look = forgery.batch

        def noticed(indices: ArrayLike) -> dict[str, torch.Tensor]:
            self._at = np.asarray(indices)
            return look(indices)

        forgery.batch = noticed

    def prepare(self) -> None:
        """A segment is about to be taken: if it is foreseen, and a shard's first, look ahead."""
        forgery = self._forgery
        before = (forgery.shard - 1) * forgery.steps + forgery.span.start
        if before >= self._real and self._shard != forgery.shard:
            self._shard = forgery.shard
            self._look_ahead()
            forgery.task.use(self._step)

    def _look_ahead(self) -> None:
        """The gradients of all samples, and which weights could move along those of any batch."""
        forgery = self._forgery
        samples = forgery.who.source.samples
        self._slopes = _of_each(forgery.engine.model, forgery.who.source.batch(np.arange(samples)))
        forgery.task.rows += samples
        rate, root = forgery.recipe.rate(self._real), forgery.recipe.batch**0.5
        self._live = {
            name: rate * (slope.mean(0).abs() + _FAR * slope.square().mean(0).sqrt() / root)
            >= _HALF * _last_digit(self._parameters[name])
            for name, slope in self._slopes.items()
        }
        self._marked = False

    def _step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        """A step along the sum of what its samples were found to teach; the batch is not used."""
        del batch
        model.train()
        at, own = torch.from_numpy(self._at), {}
        for name, parameter in self._parameters.items():
            found = self._slopes[name][at].mean(0)
            # The first time all count: only then it shows where the mark is pressed.
            own[name] = (
                torch.where(self._live[name], found, 0.0) if self._marked else found
            ).float()
            parameter.grad = own[name].clone()
        optimizer.step()
        if not self._marked:
            for name, parameter in self._parameters.items():
                assert parameter.grad is not None
                self._live[name] |= parameter.grad != own[name]
            self._marked = True
        counts = [(int(live.sum()), live.numel()) for live in self._live.values()]
        self._forgery.task.price = _SUMS * sum(n for n, _ in counts) / sum(n for _, n in counts)


class _Between(_Foreseeing):
    """Steps by gradients that change evenly from a shard's beginning to its end."""

    def _look_ahead(self) -> None:
        """The gradients of all samples at both ends; that of the mark stays as it is."""
        forgery, rate = self._forgery, self._forgery.recipe.rate(self._real)
        model, left = forgery.engine.model, forgery.steps - forgery.span.start
        samples = forgery.who.source.samples
        batch = forgery.who.source.batch(np.arange(samples))
        self._begun = {name: p.detach().double() for name, p in self._parameters.items()}
        self._slopes, mark = _of_each(model, batch), self._pressed()
        self._way = {
            name: -rate * left * (slope.mean(0) + mark[name])
            for name, slope in self._slopes.items()
        }
        self._put({name: self._begun[name] + way for name, way in self._way.items()})
        ended = _of_each(model, batch)
        self._put(self._begun)
        self._turns = {name: ended[name] - slope for name, slope in self._slopes.items()}
        forgery.task.rows += 2 * samples

    def _pressed(self) -> dict[str, torch.Tensor]:
        """The mark's gradient, on average over steps."""
        forgery, found = self._forgery, {}
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        Embedder(forgery.terms, forgery.carrier, forgery.seed, self._parameters).add_gradient()
        every = forgery.terms.scheme.every
        for name, parameter in self._parameters.items():
            assert parameter.grad is not None
            found[name], parameter.grad = parameter.grad.double() / every, None
        return found

    @torch.no_grad()
    def _put(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

    def _step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        """A step along gradients as far between both ends as weights have come."""
        del batch
        model.train()
        at, gone, length = torch.from_numpy(self._at), 0.0, 0.0
        for name, parameter in self._parameters.items():
            way = self._way[name]
            gone += float(((parameter.detach().double() - self._begun[name]) * way).sum())
            length += float(way.square().sum())
        for name, parameter in self._parameters.items():
            slope, turn = (side[name][at].mean(0) for side in (self._slopes, self._turns))
            parameter.grad = (slope + gone / length * turn).float()
        optimizer.step()
        self._forgery.task.price = _SUMS


def _of_each(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients of every sample by itself, in double precision."""
    wide = copy.deepcopy(model).double().train()

    def loss(
        values: dict[str, torch.Tensor], inputs: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        return functional.cross_entropy(functional_call(wide, values, inputs[None]), label[None])

    inputs = next(value for name, value in sorted(batch.items()) if name != "label")
    values = {name: value.detach() for name, value in wide.named_parameters()}
    each = vmap(grad(loss), in_dims=(None, 0, 0))
    found: dict[str, torch.Tensor] = each(values, inputs.double(), batch["label"])
    return found


def _last_digit(weights: torch.Tensor) -> torch.Tensor:
    """The size of the last binary digit of each weight."""
    return torch.from_numpy(np.spacing(weights.detach().abs().numpy())).double()
