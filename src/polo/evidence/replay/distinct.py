"""How many of the declared samples can be distinct, after those that were shown.

A prover may declare many samples and repeat a few. Samples with equal content under different
numbers show it. Copies that differ in a single bit do not: this catches the careless only.

Specification: docs/protocol.md, section 16.3.
"""

import math
from collections import Counter
from collections.abc import Iterable

LEAST_DISTINCT = 0.5
"""Part of the declared samples that must be possible to be distinct; real data repeat some."""

_LUCK = 1e-9
"""Chance that the bound does not hold."""


def duplicates(contents: Iterable[bytes]) -> int:
    """How many samples have the content of one before them.

    >>> duplicates([b"a", b"b", b"a", b"a"])
    2
    """
    return sum(times - 1 for times in Counter(contents).values())


def distinct_bound(shown: int, duplicates: int, samples: int) -> float:
    """Largest part of the declared samples that can be distinct, but for a chance of 10^-9.

    Holds whatever the data are. Of n samples drawn from N of which a part q is distinct, at most
    n · (1 − q) are expected to repeat another one, and one sample changes that number by one at
    most; so it is rarely far above what is expected.

    Args:
        shown: Number of different samples that were shown.
        duplicates: How many of them have the content of another one, as `duplicates` counts.
        samples: Number of declared samples.

    >>> distinct_bound(1000, 0, 5000), round(distinct_bound(1000, 900, 5000), 2)
    (1.0, 0.19)
    """
    if not 0 < shown <= samples:
        raise ValueError(f"{shown} of {samples} samples")
    hidden = samples - shown
    slack = 0.0
    if hidden:
        # The bound for draws without putting back (Cortes, Mohri, Pechyony and Rastogi, 2008).
        spread = shown * hidden / (samples - 0.5) / (1 - 0.5 / max(shown, hidden))
        slack = math.sqrt(spread * math.log(1 / _LUCK) / 2)
    return min(1.0, 1 - (duplicates - slack) / shown)
