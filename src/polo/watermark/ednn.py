"""EDNN (Uchida et al. 2017): a bit is the sign of a random projection of its weights.

Reading is exact on every machine: weights become multiples of 2^-40 as integers, so signed sums
do not depend on the order or the width of anybody's arithmetic. A bit is 1 if its sum is above
zero, 0 if below; a sum of exactly zero matches nothing.

Specification: docs/protocol.md, section 7.4.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.protocol.layout import Tensor
from polo.watermark.interface import Defaults, matrices_only

if TYPE_CHECKING:
    from polo.watermark.mark import Mark

FRACTION_BITS = 40
MAX_UNITS = 2**48
"""Weights beyond ±256 count as ±256."""

_SPLIT = 24
_EXACT = 2**53
_ROWS = 256
_CELLS = 2**18
"""Signs of so many weights are looked at together: as float64 they fit into a core's cache."""


class Ednn:
    """See `polo.watermark.schemes.Scheme`."""

    name = "ednn"
    together = 1
    defaults = Defaults()
    precision = frozenset({"F16", "BF16"})

    def matches(
        self, mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which bits match, by group and bit."""
        return matches(mark, values, groups)

    def objection(self, tensor: Tensor, *, norm: bool | None) -> str:
        """Why a tensor may not carry; empty if it may."""
        del norm
        return matrices_only(tensor)


def matches(
    mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
) -> NDArray[np.bool_]:
    """Which bits match where each is the sign of a signed sum over its group."""
    units = fixed_point(values).reshape(len(groups), mark.group_weights)
    return matching(mark, units, groups)


def matching(mark: "Mark", units: NDArray[np.int64], groups: Sequence[int]) -> NDArray[np.bool_]:
    """Which bits match, given what the key's columns stand for: integers, groups × columns."""
    count, columns = units.shape
    if count != len(groups):
        raise ValueError(f"weights of {count} groups for {len(groups)}")
    sums = [
        keyed_sums(mark.plus_of(groups[part], columns), units[part])
        for part in cached_parts(count, mark.group_bits * columns)
    ]
    return right(mark, np.concatenate(sums), groups)


def cached_parts(groups: int, cells: int) -> Iterator[slice]:
    """Groups, of so many signs each, a few at a time."""
    each = max(1, _CELLS // cells)
    return (slice(at, at + each) for at in range(0, groups, each))


def right(mark: "Mark", sums: NDArray[np.int64], groups: Sequence[int]) -> NDArray[np.bool_]:
    """Which signs, by group and bit, are those of the mark; zero never is."""
    found: NDArray[np.bool_] = np.where(mark.bits[list(groups)], sums > 0, sums < 0)
    return found


def fixed_point(values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Weights as integers in units of 2^-40, rounded half to even, saturating."""
    # Cut first: the largest doubles would overflow when scaled.
    most = np.ldexp(1.0 * MAX_UNITS, -FRACTION_BITS)
    scaled = np.ldexp(np.clip(values.astype(np.float64), -most, most), FRACTION_BITS)
    return np.rint(scaled).astype(np.int64)


def signed_sums(signs: NDArray[np.int8], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exact products of a group's signs (bits × weights) with its weights, or of several groups'.

    High and low halves go through float64 matrix products: with at most 2^14 weights of 2^26
    each every partial sum stays far below 2^53, where float64 is exact.
    """
    low = (units & (2**_SPLIT - 1)).astype(np.float64)
    high = (units >> _SPLIT).astype(np.float64)
    halves = np.stack([high, low], axis=-1)
    sums = np.empty((*signs.shape[:-1], 2), dtype=np.int64)
    for at in range(0, signs.shape[-2], _ROWS):
        rows = np.s_[..., at : at + _ROWS, :]
        sums[rows] = signs[rows].astype(np.float64) @ halves
    total: NDArray[np.int64] = sums[..., 0] * 2**_SPLIT + sums[..., 1]
    return total


def keyed_sums(plus: NDArray[np.uint8], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same as `signed_sums`, with signs given as 1 for plus and 0 for minus, as keys have them.

    Weights of usual size need no halves, and bits need not be made signs first.
    """
    if are_small(units):
        return small_sums(plus, units)
    return signed_sums(plus.view(np.int8) * 2 - 1, units)


def are_small(units: NDArray[np.int64]) -> bool:
    """Whether float64 holds every sum over some of a group's numbers exactly."""
    largest = int(np.abs(units).max(initial=0))
    return largest * int(units.shape[-1]) <= _EXACT


def small_sums(plus: NDArray[np.uint8], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exact products of signs, given as in `keyed_sums`, with numbers that `are_small`."""
    chosen, columns = np.empty(plus.shape[:-1], np.int64), units.astype(np.float64)[..., None]
    for at in range(0, plus.shape[-2], _ROWS):
        part = np.s_[..., at : at + _ROWS]
        chosen[part] = (plus[*part, :].astype(np.float64) @ columns)[..., 0]
    # A sign is twice its bit less one.
    total: NDArray[np.int64] = 2 * chosen - units.sum(axis=-1)[..., None]
    return total
