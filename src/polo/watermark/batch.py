"""Reading groups of many marks at once, to the bit as the schemes read them one by one.

Looking for thousands of chains in one model takes few bits of each, so what a single mark costs in
calls and copies decides. Here the blocks, bits and keys of many marks are derived together.

Nothing is rounded that the schemes do not round: groups are first brought to one size by a power
of two, so that weights are whole multiples of 2^-40 below one. Signed sums of up to 2^13 of them
stay below 2^53, where float64 is exact. Schemes that are not built in, and larger groups, are read
one mark at a time.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.protocol import derivation
from polo.protocol.digest import u32
from polo.protocol.records import SchemeTerms
from polo.watermark import riga, schemes
from polo.watermark.ednn import fixed_point
from polo.watermark.ednn_mean import AVERAGED
from polo.watermark.mark import Mark

Array = NDArray[np.floating[Any]]

_EXACT = 2**53
_LARGEST = 2**61
_UNITS = 2**40
_CELLS = 2**18
"""Signs unpacked at a time: 2 MiB of float64, which a core's cache holds."""


@dataclass(frozen=True)
class Shape:
    """How a mark of some terms is laid out.

    Attributes:
        scheme: The terms.
        blocks: Blocks of the carrier.
    """

    scheme: SchemeTerms
    blocks: int

    @functools.cached_property
    def _mark(self) -> Mark:
        return Mark(self.scheme, tuple(range(self.scheme.blocks)), bytes(32))

    @property
    def groups(self) -> int:
        """Groups of a mark."""
        return self._mark.groups

    @property
    def group_bits(self) -> int:
        """Bits of a group."""
        return self._mark.group_bits

    @property
    def group_blocks(self) -> int:
        """Blocks of a group."""
        return self.scheme.blocks // self.groups

    @property
    def group_weights(self) -> int:
        """Weights of a group."""
        return self.group_blocks * self.scheme.block


def places(shape: Shape, seeds: Sequence[bytes], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The blocks of some groups of many marks.

    Args:
        shape: How the marks are laid out.
        seeds: A seed for every mark.
        groups: Groups to locate, by mark: marks × groups.

    Returns:
        Blocks of the carrier, marks × groups × blocks of a group.
    """
    each = shape.group_blocks
    # The last word that matters is that of the last group asked for, unless one comes twice.
    words = (int(groups.max()) + 1) * each
    blocks = _first_blocks(shape, seeds, words)
    wanted = groups[:, :, None] * each + np.arange(each)
    found: NDArray[np.int64] = np.take_along_axis(blocks, wanted.reshape(len(seeds), -1), axis=1)
    return found.reshape(*groups.shape, each)


def _first_blocks(shape: Shape, seeds: Sequence[bytes], count: int) -> NDArray[np.int64]:
    """The first blocks of every mark, in the order drawn; see `derivation.positions`."""
    blocks = _drawn_blocks(shape, seeds, count)
    ordered = np.sort(blocks, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | (ordered[:, 0] < 0)
    rows = np.flatnonzero(twice).tolist()
    if not rows:
        return blocks
    more = _drawn_blocks(shape, [seeds[at] for at in rows], 2 * count + 16)
    order = np.argsort(more, axis=1, kind="stable")
    ordered = np.take_along_axis(more, order, axis=1)
    again = np.zeros(more.shape, dtype=np.bool_)
    repeated = (ordered[:, 1:] == ordered[:, :-1]) | (ordered[:, 1:] < 0)
    np.put_along_axis(again, order[:, 1:], repeated, axis=1)
    np.put_along_axis(again, order[:, :1], ordered[:, :1] < 0, axis=1)
    new = np.argsort(again, axis=1, kind="stable")[:, :count]
    blocks[rows] = np.take_along_axis(more, new, axis=1)
    for at in np.flatnonzero(np.take_along_axis(again, new[:, -1:], axis=1)).tolist():
        seed = seeds[rows[at]]
        blocks[rows[at]] = derivation.positions(seed, shape.scheme.blocks, shape.blocks)[:count]
    return blocks


def _drawn_blocks(shape: Shape, seeds: Sequence[bytes], words: int) -> NDArray[np.int64]:
    """Words of the position streams as blocks, some twice; −1 for those that are dropped."""
    drawn = _streams(seeds, "polo/positions/1", 8 * words).view("<u8")
    blocks = (drawn % np.uint64(shape.blocks)).astype(np.int64)
    limit = 2**64 - 2**64 % shape.blocks
    if limit < 2**64:
        blocks[drawn >= np.uint64(limit)] = -1
    return blocks


def matches(
    shape: Shape,
    seeds: Sequence[bytes],
    groups: NDArray[np.int64],
    values: Array,
) -> NDArray[np.bool_]:
    """Which bits of these groups match.

    Args:
        shape: How the marks are laid out.
        seeds: The seed of the mark that each group belongs to; a mark may come several times.
        groups: Which group of its mark each one is.
        values: Finite weights, groups × weights.

    Returns:
        Groups × bits.
    """
    if not len(seeds):
        return np.zeros((0, shape.group_bits), dtype=np.bool_)
    values = within_range(np.asarray(values, dtype=np.float64))
    read = _READERS.get(shape.scheme.name) if _small(shape) else None
    return (read or _one_by_one)(shape, seeds, groups, values)


def within_range(values: Array) -> Array:
    """Groups scaled by powers of two, so that no rescaling hides them below what is read.

    Signs of sums do not change by it.
    """
    exponents = np.frexp(np.abs(values).max(axis=1))[1]
    scaled: Array = np.ldexp(values, -exponents[:, None])
    return scaled


def _small(shape: Shape) -> bool:
    """Whether float64 holds every sum over a group, and 64 bits those of RIGA's second layer."""
    weights = shape.group_weights * _UNITS
    if shape.scheme.name == "riga" and weights * _hidden(shape) > _LARGEST:
        return False
    return weights * AVERAGED <= _EXACT


def _hidden(shape: Shape) -> int:
    return max(riga.HIDDEN, 2 * shape.group_bits)


def _projected(
    shape: Shape, seeds: Sequence[bytes], groups: NDArray[np.int64], values: Array
) -> NDArray[np.bool_]:
    """A bit is the sign of a signed sum over its group."""
    units = fixed_point(values).astype(np.float64)
    if shape.scheme.name == "ednn-mean":
        runs = units.reshape(len(seeds), -1, AVERAGED, shape.scheme.block)
        units = runs.sum(axis=2).reshape(len(seeds), -1)
    sums = _signed_sums(seeds, groups, "polo/key/1", shape.group_bits, units)
    return _right(shape, seeds, groups, sums)


def _chosen(
    shape: Shape, seeds: Sequence[bytes], groups: NDArray[np.int64], values: Array
) -> NDArray[np.bool_]:
    """A bit is the sign of one chosen weight."""
    stretch = shape.group_weights // shape.group_bits
    words = _streams(seeds, "polo/key/1", 4 * shape.group_bits, groups).view("<u4")
    at = np.arange(shape.group_bits) * stretch + words.astype(np.int64) % stretch
    return _right(shape, seeds, groups, np.take_along_axis(fixed_point(values), at, axis=1))


def _extracted(
    shape: Shape, seeds: Sequence[bytes], groups: NDArray[np.int64], values: Array
) -> NDArray[np.bool_]:
    """A bit is the sign of RIGA's second layer."""
    hidden, bits = _hidden(shape), shape.group_bits
    units = fixed_point(values).astype(np.float64)
    z = _signed_sums(seeds, groups, "polo/riga-hidden/1", hidden, units).astype(np.int64)
    active = np.where(z >= 0, z, z >> riga.SHIFT)
    rows = (groups[:, None] * bits + np.arange(bits)).reshape(-1)
    each = [seed for seed in seeds for _ in range(bits)]
    words = _streams(each, "polo/riga-out/1", 8 * hidden, rows).view("<u8")
    plus = np.argsort(words, axis=1, kind="stable")[:, : hidden // 2]
    own = np.repeat(active, bits, axis=0)
    sums = 2 * np.take_along_axis(own, plus, axis=1).sum(axis=1) - own.sum(axis=1)
    return _right(shape, seeds, groups, sums.reshape(len(seeds), bits))


def _one_by_one(
    shape: Shape, seeds: Sequence[bytes], groups: NDArray[np.int64], values: Array
) -> NDArray[np.bool_]:
    """As the scheme itself reads it."""
    blocks = tuple(range(shape.scheme.blocks))
    marks = {seed: Mark(shape.scheme, blocks, seed) for seed in seeds}
    read = [
        schemes.matches(marks[seed], row[None], [int(group)])
        for seed, group, row in zip(seeds, groups, values, strict=True)
    ]
    return np.concatenate(read)


_Reader = Callable[[Shape, Sequence[bytes], NDArray[np.int64], Array], NDArray[np.bool_]]

_READERS: dict[str, _Reader] = {
    "ednn": _projected,
    "ednn-mean": _projected,
    "fedipr": _projected,
    "fedipr-kernel": _projected,
    "signed": _chosen,
    "riga": _extracted,
}
"""By names that no other package can take."""


def _signed_sums(
    seeds: Sequence[bytes], groups: NDArray[np.int64], label: str, rows: int, units: Array
) -> Array:
    """Products of each group's signs (rows × columns) with its units, exactly."""
    columns = units.shape[1]
    step = max(1, _CELLS // (rows * columns))
    sums = np.empty((len(seeds), rows))
    for at in range(0, len(seeds), step):
        part = slice(at, at + step)
        raw = _streams(seeds[part], label, rows * columns // 8, groups[part])
        plus = np.unpackbits(raw, axis=1, bitorder="little").reshape(-1, rows, columns)
        sums[part] = np.matmul(plus.astype(np.float64), units[part, :, None])[:, :, 0]
    # A sign is twice its bit less one.
    exact: Array = 2 * sums - units.sum(axis=1)[:, None]
    return exact


def _right(
    shape: Shape, seeds: Sequence[bytes], groups: NDArray[np.int64], sums: NDArray[Any]
) -> NDArray[np.bool_]:
    """Which signs are those of the marks; zero never is."""
    each = {seed: at for at, seed in enumerate(dict.fromkeys(seeds))}
    raw = _streams(list(each), "polo/bits/1", -(-shape.scheme.bits // 8))
    flat = np.unpackbits(raw, axis=1, bitorder="little")[:, : shape.scheme.bits]
    wanted = flat.reshape(len(each), shape.groups, -1)[[each[seed] for seed in seeds], groups]
    found: NDArray[np.bool_] = np.where(wanted, sums > 0, sums < 0)
    return found


def _streams(
    seeds: Sequence[bytes], label: str, size: int, indices: NDArray[np.int64] | None = None
) -> NDArray[np.uint8]:
    """The first bytes of a stream of every seed, as rows; `derivation.stream`, many times."""
    name, shake = label.encode("ascii"), hashlib.shake_256
    start = bytes([len(name)]) + name
    ends = [u32(0)] * len(seeds) if indices is None else list(map(u32, indices.tolist()))
    parts = [shake(start + seed + end).digest(size) for seed, end in zip(seeds, ends, strict=True)]
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(seeds), size)
