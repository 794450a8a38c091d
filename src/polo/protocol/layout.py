"""The layout: names, types, shapes and ties of a checkpoint, and how it is cut into leaves.

Specification: docs/protocol.md, section 3.2.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from polo.errors import FormatError, LimitError
from polo.protocol.digest import tagged
from polo.protocol.fields import Choice, Integer, ListOf, Nested, Record, Text, of

CHUNK_BYTES = 16 * 1024
MAX_TENSORS = 100_000
MAX_BYTES = 2**48

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C32": 4, "C64": 8, "C128": 16,
}  # fmt: skip
"""Bytes per element. The names are those of safetensors, which lacks C32 and C128."""

CARRIER_DTYPES = ("F16", "BF16", "F32", "F64")
"""Types whose values can be read as a mark."""

_NAME = Text(512, r"[^\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class Tensor(Record):
    """One tensor's name, type and shape."""

    name: str = of(_NAME)
    dtype: str = of(Choice(tuple(DTYPE_BYTES)))
    shape: tuple[int, ...] = of(ListOf(Integer(0, 2**48), 32))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @functools.cached_property
    def size(self) -> int:
        """Number of bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def chunks(self) -> int:
        """Number of leaves that hold it; none for an empty tensor."""
        return -(-self.size // CHUNK_BYTES)


@dataclass(frozen=True)
class Tie(Record):
    """A name that stands for another tensor of the same layout."""

    alias: str = of(_NAME)
    name: str = of(_NAME)


class Leaf(NamedTuple):
    """Where one leaf lies: tensor and chunk index, and the bytes it covers."""

    tensor: int
    chunk: int
    start: int
    length: int


@dataclass(frozen=True)
class Layout(Record):
    """Everything about a checkpoint but its values."""

    FORMAT = "polo/layout/1"

    chunk: int = of(Integer(CHUNK_BYTES, CHUNK_BYTES))
    tensors: tuple[Tensor, ...] = of(ListOf(Nested(Tensor), MAX_TENSORS))
    ties: tuple[Tie, ...] = of(ListOf(Nested(Tie), MAX_TENSORS))

    @classmethod
    def from_json(cls, value: object, place: str) -> Self:
        """See `Record`; the order of names and the ties are checked too."""
        layout = super().from_json(value, place)
        layout.check(place)
        return layout

    def check(self, place: str = "layout") -> None:
        """Refuse unsorted or repeated names, dangling ties, absurd sizes."""
        names = [tensor.name.encode() for tensor in self.tensors]
        aliases = [tie.alias.encode() for tie in self.ties]
        for kind, sequence in (("tensor", names), ("tie", aliases)):
            for one, other in itertools.pairwise(sequence):
                if other <= one:
                    raise FormatError(f"{kind} names are not sorted: {other[:80]!r}", place=place)
        known = set(names)
        for tie in self.ties:
            if tie.alias.encode() in known or tie.name.encode() not in known:
                raise FormatError(f"the tie {tie.alias[:80]!r} leads nowhere", place=place)
        if not self.tensors:
            raise FormatError("there is no tensor", place=place)
        if "__metadata__" in self.index:
            raise FormatError("safetensors keeps the name __metadata__ for itself", place=place)
        if self.size > MAX_BYTES:
            raise LimitError(f"{self.size} bytes of weights; at most {MAX_BYTES}", place=place)

    @functools.cached_property
    def digest(self) -> bytes:
        """What the terms name."""
        return tagged("polo/layout/1", self.to_bytes())

    @functools.cached_property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)

    @functools.cached_property
    def leaf_count(self) -> int:
        """Number of leaves."""
        return sum(tensor.chunks for tensor in self.tensors)

    @functools.cached_property
    def first_leaf(self) -> tuple[int, ...]:
        """Index of each tensor's first leaf."""
        starts, total = [], 0
        for tensor in self.tensors:
            starts.append(total)
            total += tensor.chunks
        return tuple(starts)

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Each tensor's first byte when all tensors are written one after the other."""
        starts, total = [], 0
        for tensor in self.tensors:
            starts.append(total)
            total += tensor.size
        return tuple(starts)

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Tensor index by name."""
        return {tensor.name: at for at, tensor in enumerate(self.tensors)}

    def leaf(self, tensor: int, chunk: int) -> Leaf:
        """The leaf that holds a chunk of a tensor."""
        start = chunk * CHUNK_BYTES
        length = min(CHUNK_BYTES, self.tensors[tensor].size - start)
        return Leaf(tensor, chunk, start, length)

    def leaves(self) -> Iterator[Leaf]:
        """All leaves in order."""
        for at, tensor in enumerate(self.tensors):
            for chunk in range(tensor.chunks):
                yield self.leaf(at, chunk)
