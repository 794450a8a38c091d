"""The tree of a log (RFC 6962, RFC 9162): growing it, and proofs that lead to its roots.

Complete subtrees never change: the one of `level` and `index` stands over the 2^level leaves from
index · 2^level on. A log keeps their hashes, and every root and every proof follows from them. Who
asks gives a `Lookup`, so a registry's database and downloaded tiles serve alike.

Specification: docs/protocol.md, section 19.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from polo.errors import FormatError, SignatureError
from polo.protocol import canonical
from polo.protocol.merkle import node

MAX_SIZE = canonical.MAX_SAFE_INTEGER
"""Most entries of a log."""

EMPTY_ROOT = hashlib.sha256(b"").digest()

Lookup = Callable[[int, int], bytes]
"""The hash of the complete subtree of a level and an index; level 0 are the leaves."""


@dataclass(frozen=True)
class Node:
    """A complete subtree and its hash."""

    level: int
    index: int
    hash: bytes


def peaks(size: int) -> list[tuple[int, int]]:
    """Levels and indices of the largest complete subtrees of a tree, from left to right.

    >>> peaks(6)
    [(2, 0), (1, 2)]
    """
    found, at = [], 0
    for level in range(size.bit_length() - 1, -1, -1):
        if size >> level & 1:
            found.append((level, at >> level))
            at += 1 << level
    return found


def root_of(size: int, lookup: Lookup) -> bytes:
    """The root of the first `size` leaves."""
    return _joined([lookup(level, index) for level, index in peaks(size)])


def inclusion(index: int, size: int, lookup: Lookup) -> list[bytes]:
    """The path from a leaf up to the root of the first `size` leaves."""
    if not 0 <= index < size:
        raise FormatError(f"entry {index} asked of a log of {size}")
    path: list[bytes] = []
    level, at, last = 0, index, size - 1
    while last:
        beside = at ^ 1
        if beside < last or (beside == last and not size & ((1 << level) - 1)):
            path.append(lookup(level, beside))
        elif beside == last:  # The last one is not complete.
            path.append(_over(beside << level, size, lookup))
        # Else there is nothing beside it, and it goes up as it is.
        level, at, last = level + 1, at >> 1, last >> 1
    return path


def root_from_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], *, place: str
) -> bytes:
    """The root that a leaf and its path lead to."""
    if not 0 <= index < size:
        raise FormatError(f"entry {index} of a log of {size}", place=place)
    at, last, found = index, size - 1, leaf
    for item in path:
        if not last:
            raise FormatError("the path into the log is too long", place=place)
        if at & 1 or at == last:
            found = node(item, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node(found, item)
        at, last = at >> 1, last >> 1
    if last:
        raise FormatError("the path into the log is too short", place=place)
    return found


def check_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes, *, place: str
) -> None:
    """Refuse a path that does not lead from the leaf to the root."""
    if root_from_inclusion(leaf, index, size, path, place=place) != root:
        raise SignatureError(f"it is not entry {index} of the log of {size}", place=place)


def consistency(old: int, new: int, lookup: Lookup) -> list[bytes]:
    """Shows that the tree of `old` leaves is the beginning of the one of `new`."""
    if not 0 <= old <= new:
        raise FormatError(f"no log of {new} entries goes on from one of {old}")
    if old in (0, new):
        return []
    proof: list[bytes] = []
    low, high, whole = 0, new, True
    while old < high:
        middle = _split(low, high)
        if old <= middle:
            proof.append(_over(middle, high, lookup))
            high = middle
        else:
            proof.append(_over(low, middle, lookup))
            low, whole = middle, False
    # The old tree itself need not be told to whoever knows its root.
    return ([] if whole else [_over(low, high, lookup)]) + proof[::-1]


def check_consistency(
    old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes], *, place: str
) -> None:
    """Refuse a proof by which the old tree is not the beginning of the new one."""
    if not 0 <= old <= new:
        raise FormatError(f"a log of {new} entries cannot go on from one of {old}", place=place)
    if old in (0, new):
        if proof:
            raise FormatError("the proof of consistency is too long", place=place)
        first, second = (EMPTY_ROOT, new_root) if not old else (new_root, new_root)
    else:
        first, second = _both_roots(old, old_root, new, proof, place)
    if (first, second) != (old_root, new_root):
        message = f"the log of {old} entries is not the beginning of the log of {new}"
        raise SignatureError(message, place=place)


def _both_roots(
    old: int, old_root: bytes, new: int, proof: Sequence[bytes], place: str
) -> tuple[bytes, bytes]:
    """The old and the new root that a proof leads to (RFC 9162, section 2.1.4.2)."""
    hashes = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not hashes:
        raise FormatError("the proof of consistency is too short", place=place)
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = hashes[0]
    for item in hashes[1:]:
        if not last:
            raise FormatError("the proof of consistency is too long", place=place)
        if at & 1 or at == last:
            first, second = node(item, first), node(item, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = node(second, item)
        at, last = at >> 1, last >> 1
    if last:
        raise FormatError("the proof of consistency is too short", place=place)
    return first, second


@dataclass(frozen=True)
class Frontier:
    """What a log must know of itself to grow: its size and its largest complete subtrees.

    Attributes:
        size: Leaves so far.
        hashes: Hashes of `peaks(size)`.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_SIZE or len(self.hashes) != self.size.bit_count():
            raise FormatError(f"{len(self.hashes)} subtrees of a log of {self.size}")

    @classmethod
    def load(cls, size: int, lookup: Lookup) -> Self:
        """The frontier of the first `size` leaves."""
        return cls(size, tuple(lookup(level, index) for level, index in peaks(size)))

    @property
    def root(self) -> bytes:
        """The root of the tree."""
        return _joined(list(self.hashes))

    def grown(self, leaves: Iterable[bytes]) -> "tuple[Frontier, list[Node]]":
        """The frontier with more leaves, and every complete subtree that is new, leaves included.

        Args:
            leaves: Leaf hashes, in order.
        """
        size, hashes, nodes = self.size, list(self.hashes), []
        for leaf in leaves:
            level, index, found = 0, size, leaf
            nodes.append(Node(level, index, found))
            while index & 1:
                found = node(hashes.pop(), found)
                level, index = level + 1, index >> 1
                nodes.append(Node(level, index, found))
            hashes.append(found)
            size += 1
        return Frontier(size, tuple(hashes)), nodes


def _split(low: int, high: int) -> int:
    """Where RFC 6962 cuts the leaves low … high − 1."""
    return low + (1 << (high - low - 1).bit_length() - 1)


def _over(low: int, high: int, lookup: Lookup) -> bytes:
    """The hash over leaves low … high − 1; low must be where a subtree of that size can begin."""
    return _joined(
        [
            lookup(level, index + (low >> level))
            for level, index in peaks(high - low)
        ]
    )  # fmt: skip


def _joined(hashes: list[bytes]) -> bytes:
    """The root over the largest complete subtrees, from left to right."""
    if not hashes:
        return EMPTY_ROOT
    found = hashes[-1]
    for item in reversed(hashes[:-1]):
        found = node(item, found)
    return found
