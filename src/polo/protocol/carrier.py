"""The carrier: tensors that hold marks, cut into aligned blocks that never span two tensors.

Specification: docs/protocol.md, section 7.1.
"""

import functools
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from polo.errors import TermsError
from polo.protocol.layout import CARRIER_DTYPES, CHUNK_BYTES, DTYPE_BYTES, Layout, Leaf


class Block(NamedTuple):
    """Where one block lies: the tensor's index in the layout, and its first element."""

    tensor: int
    element: int


@dataclass(frozen=True)
class Carrier:
    """The blocks of some tensors of a layout, numbered through.

    Attributes:
        layout: The layout of the checkpoints.
        names: Tensors that carry marks, in the order of the layout.
        block: Weights per block.
    """

    layout: Layout
    names: tuple[str, ...]
    block: int

    def __post_init__(self) -> None:
        indices = [self.layout.index.get(name, -1) for name in self.names]
        for name, at in zip(self.names, indices, strict=True):
            if at < 0:
                raise TermsError("this carrier is not in the layout", place=name)
            if self.layout.tensors[at].dtype not in CARRIER_DTYPES:
                raise TermsError(
                    f"a tensor of type {self.layout.tensors[at].dtype} carries no mark", place=name
                )
        if indices != sorted(set(indices)):
            raise TermsError("carriers are not distinct and in the order of the layout")

    @functools.cached_property
    def tensors(self) -> tuple[int, ...]:
        """Index in the layout of each carrier tensor."""
        return tuple(self.layout.index[name] for name in self.names)

    @functools.cached_property
    def _first(self) -> tuple[int, ...]:
        first, total = [], 0
        for at in self.tensors:
            first.append(total)
            total += self.layout.tensors[at].elements // self.block
        return (*first, total)

    @property
    def blocks(self) -> int:
        """Number of blocks. The rest of a tensor that fills no block carries nothing."""
        return self._first[-1]

    def locate(self, block: int) -> Block:
        """Where a block lies."""
        at = bisect_right(self._first, block, hi=len(self.tensors)) - 1
        return Block(self.tensors[at], (block - self._first[at]) * self.block)

    def leaves(self, blocks: Iterable[int]) -> dict[int, Leaf]:
        """The leaves that hold these blocks, by leaf index.

        A block never spans two leaves: both are aligned and a block's bytes divide a chunk's.
        """
        layout, found = self.layout, dict[int, Leaf]()
        for block in blocks:
            tensor, element = self.locate(block)
            chunk = element * DTYPE_BYTES[layout.tensors[tensor].dtype] // CHUNK_BYTES
            found[layout.first_leaf[tensor] + chunk] = layout.leaf(tensor, chunk)
        return dict(sorted(found.items()))
