"""RIGA (Wang and Kerschbaum 2021) with a frozen extractor: two keyed layers, a leaky step between.

The original trains its extractor together with the mark, and a trained extractor reads any mark
out of any weights. Here both layers are signs that are drawn from the mark's seed, so nobody
chooses them (docs/adr/0017-rigas-extractor-is-frozen.md). For one group with weights w:

    z = X₁w        hidden units, X₁ all signs
    a = z if z ≥ 0, else z / 8 rounded down
    s = X₂a        one sum per bit, each row of X₂ half plus and half minus

A bit is 1 if its sum is above zero, 0 if below; a sum of exactly zero matches nothing. Rows of X₂
are balanced because a leaky step leaves the hidden units positive on average: without balance a
row with more plus signs would lean to 1 whatever the weights.

Specification: docs/protocol.md, section 7.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.protocol import derivation
from polo.protocol.layout import Tensor
from polo.protocol.records import SchemeTerms
from polo.watermark.ednn import (
    are_small,
    cached_parts,
    fixed_point,
    keyed_sums,
    right,
    signed_sums,
    small_sums,
)
from polo.watermark.interface import Defaults, matrices_only

if TYPE_CHECKING:
    from polo.watermark.mark import Mark

HIDDEN = 64
"""Fewest hidden units of a group; groups of more than 32 bits have twice as many as bits."""

SHIFT = 3
"""The leaky step divides what is below zero by 2^3."""

MOST_WORDS = 2**23
"""Words that X₂ of a whole mark is drawn from, at most: verifiers spend a second on so many."""

_SPLIT = 32
_CELLS = 2**22
"""Signs unpacked at a time, so that a dense key takes little memory; no more are remembered."""


class Riga:
    """See `polo.watermark.schemes.Scheme`."""

    name = "riga"
    together = 1
    defaults = Defaults()
    precision = frozenset({"F16", "BF16"})

    def matches(
        self, mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which bits match, by group and bit."""
        units = fixed_point(values).reshape(len(groups), mark.group_weights)
        if _cells(mark) <= _CELLS:
            hidden, out = _layers(mark)
            if groups != range(mark.groups):
                hidden, out = hidden[list(groups)], out[list(groups)]
            parts = cached_parts(len(units), hidden[0].size)
            z = np.concatenate([keyed_sums(hidden[part], units[part]) for part in parts])
            return right(mark, _keyed_signs(out, _active(z)), groups)
        pairs = zip(groups, units, strict=True)
        return right(mark, np.stack([directions(mark, g, row) for g, row in pairs]), groups)

    def objection(self, tensor: Tensor, *, norm: bool | None) -> str:
        """Why a tensor may not carry; empty if it may."""
        del norm
        return matrices_only(tensor)

    def excess(self, terms: SchemeTerms) -> str:
        """Why a mark of these terms is too costly to read; empty if it is not."""
        group = terms.bits if terms.key == "dense" else terms.bits_per_block
        words = terms.bits * _hidden_units(group)
        if words <= MOST_WORDS:
            return ""
        return (
            f"{terms.bits} bits in groups of {group} take {words} words of key; at most "
            f"{MOST_WORDS}: use block keys, a lower load or fewer bits"
        )


def directions(mark: "Mark", group: int, units: NDArray[np.int64]) -> NDArray[np.int64]:
    """What each bit of a group reads as: 1, -1, or 0 where its sum is zero.

    Args:
        mark: The mark.
        group: Which group of it.
        units: The group's weights in units of 2^-40, each within ±2^48.
    """
    z = np.concatenate([signed_sums(part, units) for part in hidden_parts(mark, group)])
    active = _active(z)
    return np.concatenate([_signs(part, active) for part in out_parts(mark, group)])


def _active(z: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hidden units after the leaky step.

    At most 2^14 weights of 2^48 each: |z| ≤ 2^62. Right shifts of negative numbers round down.
    """
    return np.where(z >= 0, z, z >> SHIFT)


def _signs(out: NDArray[np.int8], active: NDArray[np.int64]) -> NDArray[np.int64]:
    """Signs of what the second layer makes of hidden units, of one group or of several."""
    # Sums of so large numbers may not fit 64 bits, so halves are summed apart: at most 2^15
    # numbers of 2^32 stay below 2^53, where float64 is exact, in whatever order they are added.
    low = (active & (2**_SPLIT - 1)).astype(np.float64)
    high = (active >> _SPLIT).astype(np.float64)
    sums = (out.astype(np.float64) @ np.stack([high, low], axis=-1)).astype(np.int64)
    # The sum is above · 2^32 + rest with 0 ≤ rest < 2^32: its sign is that of above, or of rest.
    above = sums[..., 0] + (sums[..., 1] >> _SPLIT)
    rest = sums[..., 1] & (2**_SPLIT - 1)
    signs: NDArray[np.int64] = np.where(above == 0, np.sign(rest), np.sign(above))
    return signs


def _keyed_signs(plus: NDArray[np.uint8], active: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same, with rows of the second layer given as 1 for plus and 0 for minus."""
    if not are_small(active):
        return _signs(_signs_of(plus), active)
    signs: NDArray[np.int64] = np.sign(small_sums(plus, active))
    return signs


def layers(mark: "Mark") -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """X₁ and X₂ of all groups, ±1."""
    hidden, out = _layers(mark)
    return _signs_of(hidden), _signs_of(out)


def _layers(mark: "Mark") -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The same, 1 for plus and 0 for minus."""
    return _remembered(mark) if _cells(mark) <= _CELLS else _derived(mark)


@functools.lru_cache(maxsize=2)
def _remembered(mark: "Mark") -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The same: to derive them takes longer than to read by them, and finishing reads often."""
    found = _derived(mark)
    for layer in found:
        layer.setflags(write=False)
    return found


def _derived(mark: "Mark") -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    units, groups, bits = hidden_units(mark), range(mark.groups), mark.scheme.bits
    hidden = _plus_of(_hidden_rows(mark, groups)).reshape(len(groups), units, -1)
    out = np.concatenate([_balanced(_words(mark, part)) for part in _parts(bits, units)])
    return hidden, out.reshape(len(groups), mark.group_bits, units)


def _cells(mark: "Mark") -> int:
    """Signs in both layers of all groups."""
    return mark.groups * hidden_units(mark) * (mark.group_weights + mark.group_bits)


def hidden_units(mark: "Mark") -> int:
    """Hidden units of a group."""
    return _hidden_units(mark.group_bits)


def _hidden_units(bits: int) -> int:
    return max(HIDDEN, 2 * bits)


def hidden_parts(mark: "Mark", group: int) -> Iterator[NDArray[np.int8]]:
    """X₁ of a group, ±1, some rows at a time: hidden units × weights."""
    rows = _hidden_rows(mark, (group,))
    for part in _parts(hidden_units(mark), mark.group_weights):
        yield _signs_of(_plus_of(rows[part]))


def _hidden_rows(mark: "Mark", groups: Sequence[int]) -> NDArray[np.uint8]:
    """X₁ of some groups, a bit for each sign, a row for each hidden unit."""
    # Blocks have at least 16 weights, so every row begins with a byte of its own.
    units, size = hidden_units(mark), mark.group_weights // 8
    data = derivation.streams(mark.seed, "polo/riga-hidden/1", groups, units * size)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, size)


def _plus_of(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.unpackbits(rows, axis=1, bitorder="little")


def _signs_of(plus: NDArray[np.uint8]) -> NDArray[np.int8]:
    signs: NDArray[np.int8] = plus.view(np.int8) * 2 - 1
    return signs


def out_parts(mark: "Mark", group: int) -> Iterator[NDArray[np.int8]]:
    """X₂ of a group, ±1, some rows at a time: bits × hidden units."""
    first = group * mark.group_bits
    for part in _parts(mark.group_bits, hidden_units(mark)):
        words = _words(mark, slice(first + part.start, first + part.stop))
        yield _signs_of(_balanced(words))


def _words(mark: "Mark", bits: slice) -> NDArray[np.uint64]:
    """What rows of X₂ come from: as many words for each bit as there are hidden units."""
    units, rows = hidden_units(mark), range(bits.start, bits.stop)
    data = derivation.streams(mark.seed, "polo/riga-out/1", rows, 8 * units)
    return np.frombuffer(data, dtype="<u8").reshape(-1, units)


def _balanced(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Rows of signs, half of them plus: 1 for plus, 0 for minus.

    Those with the smaller half of a row's words have plus; of equal words those that come first.
    """
    half = words.shape[1] // 2
    plus = words <= np.partition(words, half - 1, axis=1)[:, half - 1 : half]
    for row in np.flatnonzero(plus.sum(axis=1) != half):
        # Words of 64 bits are hardly ever equal; a proof may still have been made so.
        plus[row] = False
        plus[row, np.argsort(words[row], kind="stable")[:half]] = True
    return plus.view(np.uint8)


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CELLS // columns)
    for at in range(0, rows, step):
        yield slice(at, min(at + step, rows))
