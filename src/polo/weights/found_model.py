"""A found model: named tensors whose values are read as numbers, whatever file holds them.

`polo.weights.found.open_found` opens one. The readers of the formats turn each tensor of a
file into a `Source`; everything that is the same for all formats is here.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polo.errors import LimitError, WeightsError
from polo.protocol.layout import MAX_BYTES, MAX_TENSORS

PIECE = 2**18
"""Elements dequantised at a time: what a step needs beside its result stays at a few megabytes."""

Values = NDArray[np.floating[Any]]
Read = Callable[[int, int], Values]


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """One tensor of a found model.

    Attributes:
        name: Its name in the file.
        shape: Its shape, row-major, as the model has it and not as it is packed.
        kind: How its values are stored, as a person reads it: "BF16", "Q4_1".
        refusal: Why it cannot be read as weights; empty if it can.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    refusal: str = ""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor and what reads a span of its values; nothing reads a refused one."""

    tensor: FoundTensor
    read: Read | None


class FoundModel:
    """A found model, open for reading from any number of threads.

    Args:
        sources: Its tensors; their names are distinct.
        description: See below.
        files: What to close with the model; taken over once all is in order.

    Attributes:
        tensors: All tensors by name. What only serves to unpack another one is left out.
        description: Format, tensors and bytes, in one line for people.
    """

    def __init__(
        self, sources: Iterable[Source], description: str, files: contextlib.ExitStack
    ) -> None:
        found: dict[str, Source] = {}
        for source in sources:
            _check(source.tensor, len(found))
            found[source.tensor.name] = source
        self._sources = found
        # From here on they are closed with the model; had anything been refused, by the caller.
        self._files = files.pop_all()
        tensors = {name: source.tensor for name, source in found.items()}
        self.tensors: Mapping[str, FoundTensor] = MappingProxyType(tensors)
        self.description = description

    def read(self, name: str, start: int, stop: int) -> Values:
        """Elements `start` to `stop` of a tensor flattened in row-major order, dequantised.

        Reads no more of the file than these take, rounded to blocks of quantisation. NaN and
        infinity are passed on as they are.

        Raises:
            WeightsError: There is no such tensor or span, or it is no weights.
        """
        tensor, read = self._find(name)
        if not 0 <= start <= stop <= tensor.elements:
            raise WeightsError(f"{start} to {stop} of {tensor.elements} elements", place=name)
        if start == stop:
            return np.empty(0, np.float32)
        # Hostile values may overflow on the way; what comes of it is the caller's to judge.
        with np.errstate(all="ignore"):
            return _in_pieces(read, start, stop)

    def values(self, name: str) -> Values:
        """A whole tensor in its shape."""
        tensor, _ = self._find(name)
        return self.read(name, 0, tensor.elements).reshape(tensor.shape)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, name: str) -> tuple[FoundTensor, Read]:
        source = self._sources.get(name)
        if source is None:
            raise WeightsError("the model has no such tensor", place=name[:80])
        if source.read is None:
            raise WeightsError(source.tensor.refusal, place=name)
        return source.tensor, source.read


def _in_pieces(read: Read, start: int, stop: int) -> Values:
    first = read(start, min(start + PIECE, stop))
    if len(first) == stop - start:
        return first
    values = np.empty(stop - start, first.dtype)
    values[:PIECE] = first
    for at in range(start + PIECE, stop, PIECE):
        end = min(at + PIECE, stop)
        values[at - start : end - start] = read(at, end)
    return values


def _check(tensor: FoundTensor, earlier: int) -> None:
    if earlier >= MAX_TENSORS:
        raise LimitError(f"more than {MAX_TENSORS} tensors", place=tensor.name)
    # An empty tensor has no bytes that would bound its other dimensions, and numpy multiplies them.
    if math.prod(max(size, 1) for size in tensor.shape) > MAX_BYTES:
        raise LimitError(f"a shape of {tensor.shape}", place=tensor.name)


def describe(form: str, tensors: int, size: int) -> str:
    """The line for people.

    >>> describe("GGUF", 272, 98_362_432)
    'GGUF, 272 tensors, 98,362,432 bytes'
    """
    return f"{form}, {tensors} tensor{'' if tensors == 1 else 's'}, {size:,} bytes"
