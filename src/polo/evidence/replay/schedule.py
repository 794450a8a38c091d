"""Learning rates: which part of the full rate a step takes.

Every operation is one that all machines round alike. The cosine of a mathematics library is none,
so it is summed up in integers and rounded to a double once.

Specification: docs/protocol.md, section 16.4.
"""

from collections.abc import Sequence

SCHEDULES = ("constant", "cosine", "linear", "steps")

_BITS = 96
_PI = 0x3_243F6A88_85A308D3_13198A2E
"""π · 2^96, rounded down."""


def warming(step: int, warmup: int) -> float:
    """The part while warming up: 1/warmup at step 0, and all of it at the last of them."""
    return (step + 1) / warmup


def linear(done: int, span: int) -> float:
    """A straight line from 1 down to 1/span; it stays there."""
    return (span - min(done, span - 1)) / span


def cosine(done: int, span: int) -> float:
    """Half a cosine wave from 1 down to its last point before 0; it stays there.

    >>> cosine(0, 100), cosine(50, 100), cosine(100, 100) == cosine(99, 100) > 0
    (1.0, 0.5, True)
    """
    angle = _PI * min(done, span - 1) // span
    square = angle * angle >> _BITS
    term, total, at = 1 << _BITS, 1 << _BITS, 0
    while term:
        at += 2
        term = (term * square >> _BITS) // (at * (at - 1))
        total += -term if at % 4 else term
    return (total + (1 << _BITS)) / (2 << _BITS)


def falling(step: int, milestones: Sequence[int], gamma: float) -> float:
    """One factor gamma for every milestone that is reached, multiplied one after the other."""
    part = 1.0
    for milestone in milestones:
        if step >= milestone:
            part *= gamma
    return part
