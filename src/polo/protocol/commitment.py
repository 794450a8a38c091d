"""The commitment to a checkpoint, and openings of parts of it.

Specification: docs/protocol.md, sections 4 and 5.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polo.errors import FormatError
from polo.protocol import merkle
from polo.protocol.digest import SIZE, tagged, u64
from polo.protocol.layout import Layout, Leaf

LEAF_HEADER = struct.Struct("<BIQI")
"""Tag 0, tensor index, chunk index, length: what stands before a chunk's bytes in its leaf."""


def leaf_hash(leaf: Leaf, data: bytes | memoryview) -> bytes:
    """The hash of one leaf."""
    state = hashlib.sha256(LEAF_HEADER.pack(0, leaf.tensor, leaf.chunk, leaf.length))
    state.update(data)
    return state.digest()


def root(layout: Layout, leaves: Sequence[bytes]) -> bytes:
    """The root of a checkpoint with this layout and these leaf hashes, in order."""
    if len(leaves) != layout.leaf_count:
        raise FormatError(f"{len(leaves)} leaves where the layout has {layout.leaf_count}")
    return root_of_tree(layout, merkle.root(leaves))


def root_of_tree(layout: Layout, tree: bytes) -> bytes:
    """The root of a checkpoint whose Merkle tree has this root."""
    return tagged("polo/root/1", layout.digest, u64(layout.leaf_count), tree)


@dataclass(frozen=True)
class Opening:
    """Some chunks of a checkpoint, and one multiproof for all of them.

    Attributes:
        chunks: Bytes of each opened leaf, by leaf index.
        path: The multiproof.
    """

    chunks: Mapping[int, bytes | memoryview]
    path: tuple[bytes, ...]

    def root(self, layout: Layout, where: Mapping[int, Leaf], *, place: str) -> bytes:
        """The root of the checkpoint that this opening belongs to.

        Args:
            layout: The layout of the checkpoint.
            where: The leaves that must be opened, no fewer and no more, by index.
            place: What to name in errors.
        """
        if set(self.chunks) != set(where):
            odd = min(set(self.chunks) ^ set(where))
            raise FormatError(f"leaf {odd} is opened but not needed, or the reverse", place=place)
        hashes = {}
        for index, leaf in where.items():
            if len(self.chunks[index]) != leaf.length:
                raise FormatError(
                    f"leaf {index} has {len(self.chunks[index])} bytes instead of {leaf.length}",
                    place=place,
                )
            hashes[index] = leaf_hash(leaf, self.chunks[index])
        if any(len(item) != SIZE for item in self.path):
            raise FormatError("a hash of the Merkle path has the wrong length", place=place)
        tree = merkle.root_from_multiproof(layout.leaf_count, hashes, self.path, place=place)
        return root_of_tree(layout, tree)
