"""Error rates with exact intervals."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
_HALVINGS = 60
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Quantiles of Student's t at 0.975, for one degree of freedom and more; the last for all others,
where it is on the safe side."""


@functools.cache
def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact interval of a probability that was hit so many times in so many trials.

    >>> low, high = clopper_pearson(0, 300)
    >>> low, round(high, 4)
    (0.0, 0.0122)
    """
    if not 0 <= hits <= trials or not trials:
        raise ValueError(f"{hits} hits in {trials} trials")
    tail, numbers = (1 - confidence) / 2, np.arange(trials + 1)
    factorials = np.array([math.lgamma(at + 1) for at in range(trials + 1)])
    ways = factorials[-1] - factorials - factorials[::-1]

    def chances(p: float) -> NDArray[np.float64]:
        """How likely each number of hits is."""
        logs = ways + numbers * math.log(p) + (trials - numbers) * math.log1p(-p)
        found: NDArray[np.float64] = np.exp(logs)
        return found

    low = 0.0 if hits == 0 else _crossing(lambda p: chances(p)[hits:].sum() > tail)
    high = 1.0 if hits == trials else _crossing(lambda p: chances(p)[: hits + 1].sum() < tail)
    return low, high


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval by Student's t; infinite for one value.

    >>> mean, half = mean_interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    quantile = _STUDENT[min(len(values) - 2, len(_STUDENT) - 1)]
    return mean, quantile * math.sqrt(variance / len(values))


def _crossing(above: Callable[[float], bool]) -> float:
    """Where a condition that holds for large probabilities begins to hold."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2
