"""Error rates with exact intervals."""

import math
from collections.abc import Callable, Sequence

CONFIDENCE = 0.95
_HALVINGS = 60


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact interval of a probability that was hit so many times in so many trials.

    >>> low, high = clopper_pearson(0, 300)
    >>> low, round(high, 4)
    (0.0, 0.0122)
    """
    if not 0 <= hits <= trials or not trials:
        raise ValueError(f"{hits} hits in {trials} trials")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _crossing(lambda p: _at_least(hits, trials, p) > tail)
    high = 1.0 if hits == trials else _crossing(lambda p: _at_most(hits, trials, p) < tail)
    return low, high


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _crossing(above: Callable[[float], bool]) -> float:
    """Where a condition that holds for large probabilities begins to hold."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


def _at_most(hits: int, trials: int, p: float) -> float:
    return math.fsum(_chance(at, trials, p) for at in range(hits + 1))


def _at_least(hits: int, trials: int, p: float) -> float:
    return math.fsum(_chance(at, trials, p) for at in range(hits, trials + 1))


def _chance(hits: int, trials: int, p: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(ways + hits * math.log(p) + (trials - hits) * math.log1p(-p))
