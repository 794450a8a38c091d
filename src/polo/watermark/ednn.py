"""EDNN (Uchida et al. 2017): a bit is the sign of a random projection of its weights.

Reading is exact on every machine: weights become multiples of 2^-40 as integers, so signed sums
do not depend on the order or the width of anybody's arithmetic. A bit is 1 if its sum is above
zero, 0 if below; a sum of exactly zero matches nothing.

Specification: docs/protocol.md, section 7.4.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.watermark.mark import Mark

FRACTION_BITS = 40
MAX_UNITS = 2**48
"""Weights beyond ±256 count as ±256."""

_SPLIT = 24
_ROWS = 256


def matches(
    mark: Mark, values: NDArray[np.floating[Any]], groups: Sequence[int]
) -> NDArray[np.bool_]:
    """Which bits match, by group and bit; see `polo.watermark.schemes.Scheme`."""
    units = fixed_point(values).reshape(len(groups), mark.group_weights)
    sums = np.stack([signed_sums(mark.signs(g), row) for g, row in zip(groups, units, strict=True)])
    right: NDArray[np.bool_] = np.where(mark.bits[list(groups)], sums > 0, sums < 0)
    return right


def fixed_point(values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Weights as integers in units of 2^-40, rounded half to even, saturating."""
    # Cut first: the largest doubles would overflow when scaled.
    most = np.ldexp(1.0 * MAX_UNITS, -FRACTION_BITS)
    scaled = np.ldexp(np.clip(values.astype(np.float64), -most, most), FRACTION_BITS)
    return np.rint(scaled).astype(np.int64)


def signed_sums(signs: NDArray[np.int8], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exact products of a group's signs (bits × weights) with its weights.

    High and low halves go through float64 matrix products: with at most 2^14 weights of 2^24
    each every partial sum stays far below 2^53, where float64 is exact.
    """
    low = (units & (2**_SPLIT - 1)).astype(np.float64)
    high = (units >> _SPLIT).astype(np.float64)
    halves = np.stack([high, low], axis=1)
    sums = np.empty((len(signs), 2), dtype=np.int64)
    for at in range(0, len(signs), _ROWS):
        sums[at : at + _ROWS] = signs[at : at + _ROWS].astype(np.float64) @ halves
    total: NDArray[np.int64] = sums[:, 0] * 2**_SPLIT + sums[:, 1]
    return total
