"""The recipe: batch, optimizer, rates and draws, as terms of level replay fix them.

A learning rate is a function of the global step, and nothing else changes over time. So the state
of training is the model's tensors and the optimizer's, and both sides build the rest from here.

Specification: docs/protocol.md, section 16.4.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from polo.errors import TermsError
from polo.evidence.replay import schedule as schedules
from polo.evidence.replay.ahead import Ahead
from polo.evidence.settings import Decimal, Flag, Kind, Several, Whole, Word
from polo.protocol.detection import MILLION
from polo.protocol.effort import MAX_SAMPLES

if TYPE_CHECKING:
    import torch

MAX_STEPS = 2**31 - 1
_LARGEST = 1e6

KINDS: Mapping[str, Kind] = {
    "samples": Whole(1, MAX_SAMPLES),
    "batch": Whole(1, 2**24),
    "optimizer": Word(("sgd", "adam", "adamw")),
    "rate": Decimal(_LARGEST, positive=True),
    "momentum": Decimal(1.0),
    "nesterov": Flag(),
    "betas": Several(Decimal(1.0), 2, 2),
    "eps": Decimal(1.0, positive=True),
    "decay": Decimal(_LARGEST),
    "schedule": Word(schedules.SCHEDULES),
    "warmup": Whole(0, MAX_STEPS),
    "total": Whole(1, MAX_STEPS),
    "milestones": Several(Whole(1, MAX_STEPS), 1, 20),
    "gamma": Decimal(1.0, positive=True),
    "loss": Word(),
    "every": Whole(1, 2**20),
    "draws": Whole(1, 100_000),
    "top": Whole(0, 100_000),
    "seals": Whole(0, 10_000),
    "tolerance": Whole(0, 1_000_000),
    "effect": Whole(0, 1_000_000),
}
"""Form and bounds of every setting."""

_ONLY = {
    "momentum": ("sgd",), "nesterov": ("sgd",), "betas": ("adam", "adamw"),
    "eps": ("adam", "adamw"), "total": ("cosine", "linear"), "milestones": ("steps",),
    "gamma": ("steps",),
}  # fmt: skip
"""Settings that only some optimizers or schedules have; elsewhere they are left out."""

_FIELDS = {"optimizer": "algorithm", "rate": "peak"}
"""Settings whose name is that of a method here."""

_SHORTCUT, _OFTEN = 0.1, 0.05
"""Faking this part of all steps should not escape more often than that."""

_LITTLE = 2e-4
"""A rate that ends below this part of itself is worth a word."""

_FEW, _MUCH = 500_000, 50_000
"""Less effect, or more of an allowance, is worth a word, in millionths."""


@dataclass(frozen=True, init=False)
class Recipe:
    """How every step of training is done, and how much of it is run again.

    Attributes:
        samples: Samples in the data.
        batch: Samples per step; the last batch of a pass may have fewer.
        algorithm: The setting `optimizer`: `sgd`, `adam` or `adamw`.
        peak: The setting `rate`: the full learning rate.
        momentum: Of SGD.
        nesterov: Whether SGD's momentum is Nesterov's.
        betas: Of Adam and AdamW.
        eps: Of Adam and AdamW.
        decay: Weight decay.
        schedule: `constant`, `cosine`, `linear` or `steps`.
        warmup: Steps over which the rate rises to its full height.
        total: Steps of the whole chain at which `cosine` and `linear` end; the last rate stays.
        milestones: Steps of the whole chain at which `steps` multiplies the rate by `gamma`.
        gamma: See there.
        loss: A word for people; what runs is the task's training step.
        every: Steps per segment of the record.
        draws: Segments that the verifier draws.
        top: Segments of the largest moves that it adds, of each kind.
        seals: Sealings that it draws.
        tolerance: Largest deviation relative to a segment's move, in millionths, where the
            verifier's platform is another one.
        effect: Least share of samples, in millionths, that change their step when they are
            exchanged for another; steps that come out the same whatever the data are no effort.
    """

    samples: int
    batch: int
    algorithm: str
    peak: float
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    eps: float
    decay: float
    schedule: str
    warmup: int
    total: int
    milestones: tuple[int, ...]
    gamma: float
    loss: str
    every: int
    draws: int
    top: int
    seals: int
    tolerance: int
    effect: int

    def __init__(
        self,
        *,
        samples: int,
        batch: int = 64,
        optimizer: str = "sgd",
        rate: float = 0.05,
        momentum: float = 0.9,
        nesterov: bool = False,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay: float = 0.0,
        schedule: str = "constant",
        warmup: int = 0,
        total: int = 0,
        milestones: tuple[int, ...] = (),
        gamma: float = 0.1,
        loss: str = "cross-entropy",
        every: int = 16,
        draws: int = 44,
        top: int = 4,
        seals: int = 8,
        tolerance: int = 0,
        effect: int = 900_000,
        place: str = "recipe",
    ) -> None:
        given: dict[str, Any] = {
            "samples": samples, "batch": batch, "optimizer": optimizer, "rate": rate,
            "momentum": momentum, "nesterov": nesterov, "betas": tuple(betas), "eps": eps,
            "decay": decay, "schedule": schedule, "warmup": warmup, "total": total,
            "milestones": tuple(milestones), "gamma": gamma, "loss": loss, "every": every,
            "draws": draws, "top": top, "seals": seals, "tolerance": tolerance,
            "effect": effect,
        }  # fmt: skip
        wanted, defaults = _wanted(optimizer, schedule, place), Recipe.__init__.__kwdefaults__ or {}
        for key, value in given.items():
            if key in wanted:
                KINDS[key].check(value, f"{place}.{key}")
            elif value != defaults[key]:
                raise _meaningless(key, optimizer, schedule, place)
            object.__setattr__(self, _FIELDS.get(key, key), value)
        self._check(place)

    def _check(self, place: str) -> None:
        """Refuse what contradicts itself."""
        if self.batch > self.samples:
            raise TermsError(
                f"batches of {self.batch} out of {self.samples} samples", place=f"{place}.batch"
            )
        if self.nesterov and not self.momentum:
            raise TermsError("Nesterov's momentum needs a momentum", place=f"{place}.nesterov")
        if self.schedule in _ONLY["total"] and self.total <= self.warmup:
            raise TermsError(
                f"{self.total} steps in all, and {self.warmup} to warm up: none is left for the "
                "rate to come down in",
                place=f"{place}.total",
            )
        if any(later <= one for one, later in itertools.pairwise(self.milestones)):
            raise TermsError("milestones do not increase", place=f"{place}.milestones")

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], place: str) -> Self:
        """The recipe in the settings of level replay.

        Args:
            settings: All settings that optimizer and schedule have, and no others.
            place: Where they stand, for errors.
        """
        if unknown := settings.keys() - KINDS.keys():
            raise TermsError("level replay has no such setting", place=f"{place}.{min(unknown)}")
        chosen = settings.get("optimizer", ""), settings.get("schedule", "")
        wanted = _wanted(*chosen, place)
        for key in KINDS:
            if key in wanted and key not in settings:
                raise TermsError("the setting is missing", place=f"{place}.{key}")
            if key in settings and key not in wanted:
                raise _meaningless(key, *chosen, place)
        values = {key: KINDS[key].read(settings[key], f"{place}.{key}") for key in wanted}
        return cls(**values, place=place)

    def weaknesses(self, start: str) -> Iterator[str]:
        """What a forger could make use of, in sentences; terms may be signed all the same.

        Args:
            start: The kind of start in the terms.
        """
        if start == "free":
            yield "the start is free: what was trained before W_0 counts, too (--start derived)"
        missed = (1 - _SHORTCUT) ** self.draws
        if missed > _OFTEN:
            enough = draws_for(_SHORTCUT, 0.99)
            yield (
                f"draws={self.draws}: who fakes a tenth of the steps may escape with {missed:.0%}; "
                f"draws={enough} leaves 1%"
            )
        if not self.top:
            yield "top=0: one jump to other weights is not looked for by its size"
        if not self.seals:
            yield "seals=0: of all sealings the one with the largest move is done again, no other"
        if self.effect < _FEW:
            yield f"effect={self.effect}: most steps may come out the same whatever the samples are"
        if self.tolerance > _MUCH:
            off = self.tolerance / MILLION
            yield f"tolerance={self.tolerance}: steps may end {off:.0%} of their move elsewhere"
        if self.schedule == "steps" and (left := self.gamma ** len(self.milestones)) < _LITTLE:
            yield (
                f"gamma={self.gamma:g}, {len(self.milestones)} times: the rate comes down to "
                f"{left:.0e} of itself; steps that rounding swallows are no effort, and a run that "
                "has many of them is rejected"
            )
        if self.every > -(-self.samples // self.batch):
            yield f"every={self.every}: a single segment is longer than a pass over the data"

    def to_settings(self) -> dict[str, str]:
        """The settings of level replay that say this."""
        wanted = _wanted(self.algorithm, self.schedule, "recipe")
        return {key: KINDS[key].write(getattr(self, _FIELDS.get(key, key))) for key in wanted}

    def changed(self, **options: Any) -> Self:
        """This recipe with other settings."""
        own = {key: getattr(self, _FIELDS.get(key, key)) for key in KINDS}
        return type(self)(**{**own, **options})

    @property
    def steps_per_pass(self) -> int:
        """Steps in which every sample comes once."""
        return -(-self.samples // self.batch)

    def batch_at(self, step: int) -> int:
        """Number of samples in the batch of a shard's step; the last of a pass may have fewer."""
        place = step % self.steps_per_pass
        return min(self.batch, self.samples - place * self.batch)

    def segments(self, steps: int) -> int:
        """Number of segments in a shard of so many steps."""
        return -(-steps // self.every)

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0 over the whole chain."""
        if step < self.warmup:
            return self.peak * schedules.warming(step, self.warmup)
        done, span = step - self.warmup, self.total - self.warmup
        if self.schedule == "cosine":
            return self.peak * schedules.cosine(done, span)
        if self.schedule == "linear":
            return self.peak * schedules.linear(done, span)
        if self.schedule == "steps":
            return self.peak * schedules.falling(step, self.milestones, self.gamma)
        return self.peak

    @functools.cached_property
    def _ahead(self) -> Ahead[float]:
        return Ahead(self.rate)

    def set_rate(self, optimizer: "torch.optim.Optimizer", step: int) -> None:
        """Give an optimizer the learning rate of a step, counted over the whole chain."""
        rate = self._ahead(step)
        for group in optimizer.param_groups:
            group["lr"] = rate

    def optimizer(
        self, model: "torch.nn.Module | Iterable[torch.nn.Parameter]"
    ) -> "torch.optim.Optimizer":
        """A new optimizer for what is trained of a model, or for parameters.

        `foreach` and `fused` stay at torch's defaults: those give the same bits as the plain
        loop on a CPU and the fast kernels on a GPU, the same for prover and verifier; `fused`
        alone rounds otherwise.
        """
        import torch

        given = model.parameters() if isinstance(model, torch.nn.Module) else model
        trained = [parameter for parameter in given if parameter.requires_grad]
        if self.algorithm == "sgd":
            return torch.optim.SGD(
                trained,
                lr=self.rate(0),
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.decay,
            )
        kind = torch.optim.Adam if self.algorithm == "adam" else torch.optim.AdamW
        return kind(
            trained, lr=self.rate(0), betas=self.betas, eps=self.eps, weight_decay=self.decay
        )

    def check_optimizer(self, optimizer: "torch.optim.Optimizer", model: "torch.nn.Module") -> None:
        """Refuse an optimizer that would not do what the recipe says.

        It must be of the recipe's class, hold what is trained of the model in one group, in any
        order, and have the recipe's hyper-parameters. The learning rate is set, not compared.
        """
        wanted = self.optimizer(model)
        if type(optimizer) is not type(wanted):
            raise _unlike("class", type(optimizer).__name__, type(wanted).__name__)
        if len(optimizer.param_groups) != 1:
            raise _unlike("number of parameter groups", len(optimizer.param_groups), 1)
        (group,), (expected,) = optimizer.param_groups, wanted.param_groups
        _check_parameters(group["params"], model)
        for key in sorted(expected.keys() - {"params", "lr", "initial_lr"}):
            if (value := group.get(key)) != expected[key]:
                raise _unlike(key, value, expected[key])


def draws_for(fraction: float, probability: float) -> int:
    """Fewest draws that hit a faked fraction of the segments with at least a probability.

    >>> draws_for(0.1, 0.99), draws_for(0.5, 0.99), draws_for(1.0, 0.99)
    (44, 7, 1)
    """
    if not 0.0 < fraction <= 1.0 or not 0.0 <= probability < 1.0:
        raise ValueError(f"a fraction of {fraction} found with probability {probability}")
    draws = 1
    if fraction < 1.0:
        draws = max(1, math.floor(math.log1p(-probability) / math.log1p(-fraction)))
    while (1.0 - fraction) ** draws > 1.0 - probability:
        draws += 1
    return draws


def _wanted(optimizer: str, schedule: str, place: str) -> list[str]:
    """The settings that an optimizer and a schedule have."""
    KINDS["optimizer"].check(optimizer, f"{place}.optimizer")
    KINDS["schedule"].check(schedule, f"{place}.schedule")
    return [key for key in KINDS if {optimizer, schedule} & {*_ONLY.get(key, (optimizer,))}]


def _meaningless(key: str, optimizer: str, schedule: str, place: str) -> TermsError:
    return TermsError(
        f"it has no meaning for {optimizer} with rates {schedule}", place=f"{place}.{key}"
    )


def _check_parameters(given: Iterable["torch.nn.Parameter"], model: "torch.nn.Module") -> None:
    trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    held = {id(parameter) for parameter in given}
    if missing := sorted(name for at, name in trained.items() if at not in held):
        raise _unlike("parameters", f"none for {missing[0][:200]}", "all that is trained")
    if held - trained.keys():
        raise _unlike("parameters", "some that are not trained", "only what is trained")


def _unlike(what: str, found: object, wanted: object) -> TermsError:
    return TermsError(
        f"the optimizer is not the one of the terms: {what}: {found}, where the terms say {wanted}",
        place="optimizer",
        advice="prover.recipe.optimizer(model) makes the right one.",
    )
