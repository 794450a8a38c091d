"""Tensors as a file holds them, and the parts that unpacking them shares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from polo.errors import WeightsError
from polo.protocol.layout import CARRIER_DTYPES, DTYPE_BYTES, Tensor
from polo.weights import dtypes
from polo.weights.found_model import Read, Source, Values


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file holds it, and what reads its bytes from one position to another."""

    tensor: Tensor
    data: Callable[[int, int], bytes]

    def raw(self, start: int, stop: int) -> bytes:
        """Bytes of elements `start` to `stop`."""
        size = DTYPE_BYTES[self.tensor.dtype]
        return self.data(start * size, stop * size)

    def floats(self, start: int, stop: int) -> Values:
        """Elements `start` to `stop` of a tensor of floats."""
        return dtypes.to_float(self.raw(start, stop), self.tensor.dtype)

    def looked_up(self, table: Values) -> Read:
        """Reads each byte as the value that a table has for it."""
        return lambda start, stop: table[np.frombuffer(self.data(start, stop), np.uint8)]

    def integers(self, start: int, stop: int) -> Values:
        """Elements `start` to `stop` of a tensor of type I8."""
        return np.frombuffer(self.data(start, stop), np.int8).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What several stored tensors stand for together, and the names of those that helped."""

    source: Source
    used: frozenset[str]


def scaled(values: Read, scales: Read, run: int) -> Read:
    """Values of which every `run` in a row share a scale."""

    def read(start: int, stop: int) -> Values:
        first = start // run
        found = scales(first, -(-stop // run))
        if len(found) > 1:
            found = found[np.arange(start, stop) // run - first]
        return values(start, stop) * found

    return read


def floats_of(name: str, stored: Mapping[str, Stored]) -> Stored:
    """A tensor of floats that another one needs."""
    item = stored.get(name)
    if item is None:
        raise WeightsError(f"{name[:80]} is missing")
    if item.tensor.dtype not in CARRIER_DTYPES:
        raise WeightsError(f"{name[:80]} is of type {item.tensor.dtype}")
    return item
