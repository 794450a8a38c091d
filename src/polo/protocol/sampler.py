"""A Gaussian sampler in integers, the same on every machine.

A discrete Gaussian of standard deviation 64, cut at 6 standard deviations, drawn from a
cumulative table of 63-bit thresholds. The table is computed in decimal arithmetic of fixed
precision, which rounds alike everywhere.

Specification: docs/protocol.md, section 11.
"""

import functools
from decimal import ROUND_HALF_EVEN, Context, Decimal

STEPS = 64
"""Steps per standard deviation: a sample of 64 is a deviation of one σ."""

_REACH = 6 * STEPS


@functools.cache
def table() -> tuple[int, ...]:
    """Thresholds T_0 < T_1 < … < T_383 = 2^63 − 1.

    A uniform 63-bit integer u gives the magnitude: the number of thresholds at or below u.
    """
    context = Context(prec=60, rounding=ROUND_HALF_EVEN)
    variance = Decimal(2 * STEPS * STEPS)
    weights = [context.exp(context.divide(Decimal(-k * k), variance)) for k in range(_REACH)]
    # Magnitude 0 is drawn with either sign, so it weighs half as much as the others here.
    weights[0] = context.divide(weights[0], Decimal(2))
    total = functools.reduce(context.add, weights)
    running, thresholds = Decimal(0), []
    for weight in weights:
        running = context.add(running, weight)
        share = context.divide(context.multiply(running, Decimal(2**63)), total)
        thresholds.append(min(int(share), 2**63 - 1))
    return tuple(thresholds)
