"""The RFC 6962 hash tree, and one compact proof for any set of its leaves.

Leaves arrive already hashed (each kind of leaf has its own rule). The tree over n leaves
splits at the largest power of two below n, so it need not be full. A *multiproof* holds the
roots of the subtrees that contain no wanted leaf, in the order in which a walk from left to
right meets them; nothing in it can be left out or reordered.

Specification: docs/protocol.md, section 4.
"""

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from polo.errors import FormatError

_NODE = b"\x01"


def node(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return hashlib.sha256(_NODE + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over hashed leaves; of no leaves, the SHA-256 of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    sha256 = hashlib.sha256
    level = list(leaves)
    while len(level) > 1:
        # Pairing level by level and carrying an odd last node upwards gives the same tree as
        # RFC 6962's recursive split.
        odd = level[-1:] if len(level) % 2 else []
        pairs = zip(level[0::2], level[1::2], strict=False)
        level = [sha256(_NODE + left + right).digest() for left, right in pairs] + odd
    return level[0]


def multiproof(leaves: Sequence[bytes], wanted: Sequence[int]) -> list[bytes]:
    """The subtree roots that, with the wanted leaves, give the root.

    Args:
        leaves: All leaf hashes.
        wanted: Distinct leaf indices in increasing order.
    """
    _check_indices(wanted, len(leaves))
    return list(_siblings(leaves, wanted, 0, len(leaves)))


def paths(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """The multiproof of every single leaf, all at once."""
    if len(leaves) <= 1:
        return [[] for _ in leaves]
    middle = _split(0, len(leaves))
    left, right = leaves[:middle], leaves[middle:]
    # The left part of a tree comes before the right one in a multiproof.
    before, after = root(left), root(right)
    return [[*path, after] for path in paths(left)] + [[before, *path] for path in paths(right)]


def root_from_multiproof(
    count: int, wanted: Mapping[int, bytes], proof: Sequence[bytes], *, place: str
) -> bytes:
    """The root that wanted leaves and a multiproof lead to.

    Args:
        count: Number of leaves in the whole tree. It is part of what is checked: with another
            count the same hashes could stand for other leaves.
        wanted: Leaf hashes by index.
        proof: What `multiproof` returned.
        place: What to name in errors.
    """
    indices = sorted(wanted)
    try:
        _check_indices(indices, count)
    except FormatError as error:
        raise FormatError(error.message, place=place) from error
    hashes = iter(proof)
    try:
        result = _fold(indices, wanted, hashes, count)
    except StopIteration as error:
        raise FormatError("the Merkle path is too short", place=place) from error
    if next(hashes, None) is not None:
        raise FormatError("the Merkle path is too long", place=place)
    return result


def multiproof_length(count: int, wanted: Sequence[int]) -> int:
    """How many hashes a multiproof of these leaves has.

    Args:
        count: Number of leaves in the whole tree.
        wanted: Distinct leaf indices in increasing order.
    """
    if not wanted:
        return 1
    length, level = 0, wanted
    while count > 1:
        # A node needs its sibling's hash unless that is known, too; an odd last one has none.
        parents = list(dict.fromkeys(index >> 1 for index in level))
        length += 2 * len(parents) - len(level) - (count % 2 and level[-1] == count - 1)
        count, level = (count + 1) // 2, parents
    return length


def _check_indices(wanted: Sequence[int], count: int) -> None:
    if not wanted:
        raise FormatError("no leaf is asked for")
    if wanted[0] < 0 or wanted[-1] >= count:
        raise FormatError(f"leaf {wanted[-1]} asked of a tree of {count}")
    if any(b <= a for a, b in itertools.pairwise(wanted)):
        raise FormatError("leaf indices are not distinct and increasing")


def _split(low: int, high: int) -> int:
    return low + (1 << ((high - low - 1).bit_length() - 1))


def _siblings(
    leaves: Sequence[bytes], wanted: Sequence[int], low: int, high: int
) -> Iterator[bytes]:
    at = bisect_left(wanted, low)
    if at == len(wanted) or wanted[at] >= high:
        yield root(leaves[low:high])
    elif high - low > 1:
        middle = _split(low, high)
        yield from _siblings(leaves, wanted, low, middle)
        yield from _siblings(leaves, wanted, middle, high)


def _fold(
    indices: Sequence[int], wanted: Mapping[int, bytes], hashes: Iterator[bytes], count: int
) -> bytes:
    """The root of a tree of which some leaves are known, and the roots of all else."""

    def fold(low: int, high: int, first: int, last: int) -> bytes:
        """The root of the leaves `low` to `high`; the known ones are `indices[first:last]`."""
        if first == last:
            return next(hashes)
        if high - low == 1:
            return wanted[low]
        middle = _split(low, high)
        cut = bisect_left(indices, middle, first, last)
        left = fold(low, middle, first, cut)
        return node(left, fold(middle, high, cut, last))

    return fold(0, count, 0, len(indices))
