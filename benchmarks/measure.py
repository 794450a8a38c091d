"""Interleaved timing, and what follows from the samples: medians, ratios, spreads."""

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Samples = dict[str, list[float]]
"""Seconds (or another unit) of each side of a comparison; equal lengths, round by round."""

_RESAMPLES = 2000
_TOGETHER = 50
"""Rounds after which samples are there for the first time, and again."""


@dataclass(frozen=True)
class Spread:
    """A figure and how far it may be off.

    Attributes:
        median: The figure.
        p10: Tenth percentile of the single samples (of the single rounds for a ratio).
        p90: Ninetieth percentile of the same.
        low: Lower end of the 95 % bootstrap interval of the figure.
        high: Upper end of it.
    """

    median: float
    p10: float
    p90: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """As plain values."""
        return asdict(self)


def interleave(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    before: Mapping[str, Callable[[], Any]] | None = None,
) -> Samples:
    """Time all sides in turn, round after round; one untimed round comes first.

    Args:
        sides: What to time, by name.
        rounds: How many times each.
        before: What to do, untimed, right before a side.
    """
    *_, samples = itertools.islice(turns(sides, before=before), rounds)
    return samples


def rotate(sides: Mapping[str, Callable[[], None]], rounds: int) -> Samples:
    """Time all sides in turn, each round beginning with another one; two rounds are untimed."""
    names = list(sides)
    samples: Samples = {name: [] for name in names}
    for number in range(-2, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            sides[name]()
            spent = time.perf_counter() - began
            if number >= 0:
                samples[name].append(spent)
    return samples


def until_narrow(
    sides: Mapping[str, Callable[[], None]],
    over: str,
    under: str,
    *,
    least: int,
    most: int,
    width: float = 0.01,
) -> Iterator[Samples]:
    """Rotate two sides until the interval of their ratio is narrow.

    How wide it is decides, and never where it lies: who stopped as soon as it lay well would find
    what was looked for. Even so an interval that is looked at several times covers a little less
    than it says, and noise that lasts for several rounds makes it narrower than it should be.

    Args:
        sides: The two sides.
        over: The side whose ratio is asked for.
        under: The side that it is compared with.
        least: Fewest rounds.
        most: Most rounds.
        width: How wide the interval may be.

    Yields:
        All samples so far, every now and then.
    """
    samples: Samples = {name: [] for name in sides}
    while (done := len(samples[under])) < most:
        upto = least if done < least else most
        with _no_collection():
            for name, seconds in rotate(sides, min(upto - done, _TOGETHER)).items():
                samples[name] += seconds
        yield samples
        found = paired(samples[over], samples[under])
        if len(samples[under]) >= least and found.high - found.low <= width:
            return


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Let no garbage be collected meanwhile: it would be in one side by chance."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def turns(
    sides: Mapping[str, Callable[[], Any]],
    *,
    before: Mapping[str, Callable[[], Any]] | None = None,
) -> Iterator[Samples]:
    """Time all sides in turn for as long as somebody asks; all samples so far, after each round.

    Args:
        sides: What to time, by name; one untimed round comes first.
        before: What to do, untimed, right before a side.
    """
    before = before or {}
    samples: Samples = {name: [] for name in sides}
    for number in itertools.count():
        for name, side in sides.items():
            if name in before:
                before[name]()
            began = time.perf_counter()
            side()
            spent = time.perf_counter() - began
            if number:
                samples[name].append(spent)
        if number:
            yield samples


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: as fast for a small network, and steadier beside others."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def spread(values: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> Spread:
    """The median of some samples."""
    found = np.asarray(values, dtype=np.float64)
    drawn = np.median(found[_drawn(len(found))], axis=1)
    return _spread(float(np.median(found)), found, drawn)


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """The ratio of two medians; its spread comes from whole rounds, which share their noise."""
    a, b = (np.asarray(side, dtype=np.float64) for side in (over, under))
    which = _drawn(len(a))
    drawn = np.median(a[which], axis=1) / np.median(b[which], axis=1)
    return _spread(float(np.median(a) / np.median(b)), a / b, drawn)


def paired(over: Sequence[float], under: Sequence[float]) -> Spread:
    """The median of the rounds' own ratios: what slows a whole round down drops out of it.

    For sides that follow each other so closely that a machine's noise lasts longer than a round.
    """
    return spread(np.asarray(over, dtype=np.float64) / np.asarray(under, dtype=np.float64))


def _drawn(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    # A fixed generator: the same samples always give the same report.
    return np.random.default_rng(1).integers(0, count, (_RESAMPLES, count))


def _spread(
    figure: float,
    single: np.ndarray[Any, np.dtype[np.float64]],
    drawn: np.ndarray[Any, np.dtype[np.float64]],
) -> Spread:
    p10, p90 = np.percentile(single, (10, 90))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Spread(figure, float(p10), float(p90), float(low), float(high))
