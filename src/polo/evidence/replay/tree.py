"""A Merkle tree that is kept whole, so that many openings of it are quick.

The tree is that of `polo.protocol.merkle`. Leaves and inner nodes take 64 bytes per leaf.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from polo.protocol.digest import SIZE

_NODE = b"\x01"


class Tree:
    """All nodes of a tree.

    Args:
        leaves: The hashes of all leaves, one after the other.
    """

    def __init__(self, leaves: bytes) -> None:
        self._levels = [leaves]
        while len(self._levels[-1]) > SIZE:
            self._levels.append(_above(self._levels[-1]))

    def __len__(self) -> int:
        """Number of leaves."""
        return len(self._levels[0]) // SIZE

    @property
    def root(self) -> bytes:
        """The root."""
        return self._levels[-1]

    @property
    def leaves(self) -> bytes:
        """The hashes of all leaves, one after the other."""
        return self._levels[0]

    def leaf(self, index: int) -> bytes:
        """The hash of a leaf."""
        return self._node(0, index)

    def multiproof(self, wanted: Sequence[int]) -> list[bytes]:
        """What `merkle.multiproof` gives for distinct, increasing indices."""
        return list(self._siblings(len(self._levels) - 1, 0, wanted))

    def _siblings(self, level: int, at: int, wanted: Sequence[int]) -> Iterator[bytes]:
        """Roots of the subtrees under a node that hold none of the wanted leaves."""
        if not wanted:
            yield self._node(level, at)
        elif level:
            middle = (2 * at + 1) << (level - 1)
            split = bisect_left(wanted, middle)
            yield from self._siblings(level - 1, 2 * at, wanted[:split])
            # The last node of a level may have nothing beside it.
            if middle < len(self):
                yield from self._siblings(level - 1, 2 * at + 1, wanted[split:])

    def _node(self, level: int, at: int) -> bytes:
        return self._levels[level][at * SIZE : (at + 1) * SIZE]


def _above(level: bytes) -> bytes:
    """The level above a level; an odd last node is carried up as it is."""
    paired = len(level) // (2 * SIZE) * (2 * SIZE)
    sha256 = hashlib.sha256
    pairs = (level[at : at + 2 * SIZE] for at in range(0, paired, 2 * SIZE))
    return b"".join(sha256(_NODE + pair).digest() for pair in pairs) + level[paired:]
