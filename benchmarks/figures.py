"""What a benchmark hands back: figures, each with its samples and, where it has one, a target."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import measure
from benchmarks.measure import Samples, Spread


@dataclass(frozen=True)
class Target:
    """A bound on a figure: `at most` or `at least`."""

    relation: str
    bound: float

    def met_by(self, value: float) -> bool:
        """Whether a value keeps to the bound."""
        return value <= self.bound if self.relation == "at most" else value >= self.bound


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: What was measured.
        unit: Unit of the figure; `×` for a ratio.
        value: The figure with its spread; None if it could not be measured.
        ratio: The same against what it was interleaved with, where that is not the figure.
        against: What it was interleaved with.
        samples: Every sample, by side.
        target: The bound, if there is one.
        note: What a reader must know.
        details: Further numbers, as plain values.
    """

    name: str
    unit: str
    value: Spread | None
    ratio: Spread | None = None
    against: str = ""
    samples: Samples = field(default_factory=dict)
    target: Target | None = None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one, without a value, or where it is open.

        An interval that spans the target settles nothing.
        """
        if self.target is None or self.value is None:
            return None
        if self.value.low < self.target.bound < self.value.high:
            return None
        return self.target.met_by(self.value.median)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "value": self.value.to_json() if self.value else None,
            "ratio": self.ratio.to_json() if self.ratio else None,
            "against": self.against,
            "medians": {side: measure.spread(v).median for side, v in self.samples.items() if v},
            "samples": self.samples,
            "target": vars(self.target) if self.target else None,
            "met": self.met,
            "note": self.note,
            "details": self.details,
        }


Run = Callable[[bool], Iterable[Figure]]
"""Runs a benchmark; true asks for a smoke run of a few seconds."""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: a name, a sentence, and how to run it."""

    name: str
    title: str
    run: Run


def ratio_of(name: str, samples: Samples, over: str, under: str, **more: Any) -> Figure:
    """A figure that is itself a ratio: the median of one side over that of another."""
    value = measure.ratio(samples[over], samples[under])
    return Figure(name, "×", value, samples=samples, **{"against": under, **more})


def paired_of(name: str, samples: Samples, over: str, under: str, **more: Any) -> Figure:
    """A figure that is itself a ratio: the median of the single rounds' ratios."""
    value = measure.paired(samples[over], samples[under])
    return Figure(name, "×", value, samples=samples, **{"against": under, **more})


def time_of(name: str, samples: Samples, side: str, against: str, **more: Any) -> Figure:
    """A figure in seconds, with its ratio to another side of the same rounds."""
    both = {side: samples[side], against: samples[against]}
    value, compared = measure.spread(both[side]), measure.ratio(both[side], both[against])
    return Figure(name, "s", value, compared, against, both, **more)


def amount_of(name: str, unit: str, values: Sequence[float], **more: Any) -> Figure:
    """A figure that is counted and not timed: bytes, parts, settings."""
    return Figure(name, unit, measure.spread(values), samples={name: list(values)}, **more)


def missing(name: str, unit: str, note: str, target: Target | None = None) -> Figure:
    """A figure that could not be measured, and why."""
    return Figure(name, unit, None, target=target, note=note)
