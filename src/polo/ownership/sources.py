"""Where a mark's weights come from: a checkpoint, a matched file, or aligned arrays."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Protocol

from polo.protocol.layout import CARRIER_DTYPES, DTYPE_BYTES
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint
from polo.weights.found_model import FoundModel, FoundTensor, Source, Values


class WeightSource(Protocol):
    """Weights by their place in the claimant's layout."""

    def weights(self, tensor: int, start: int, stop: int) -> Values | None:
        """Elements of a tensor, flattened in row-major order; None where there are none."""


class CheckpointSource:
    """A checkpoint of the claimant's own layout."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def weights(self, tensor: int, start: int, stop: int) -> Values | None:
        """See `WeightSource`."""
        return floats(self._checkpoint, tensor, start, stop)


class ArraySource:
    """Arrays by tensor index, such as alignment returns."""

    def __init__(self, arrays: Mapping[int, Values]) -> None:
        self._arrays = arrays

    def weights(self, tensor: int, start: int, stop: int) -> Values | None:
        """See `WeightSource`."""
        found = self._arrays.get(tensor)
        return None if found is None else found.reshape(-1)[start:stop]


def floats(checkpoint: Checkpoint, tensor: int, start: int, stop: int) -> Values:
    """Elements of a checkpoint's tensor, flattened in row-major order."""
    dtype = checkpoint.layout.tensors[tensor].dtype
    size = DTYPE_BYTES[dtype]
    return dtypes.to_float(checkpoint.read(tensor, start * size, stop * size), dtype)


def found_in(checkpoint: Checkpoint) -> FoundModel:
    """A checkpoint as a model that was found, for claimants of another layout."""
    sources = [
        Source(
            FoundTensor(tensor.name, tensor.shape, tensor.dtype),
            functools.partial(floats, checkpoint, at),
        )
        for at, tensor in enumerate(checkpoint.layout.tensors)
        if tensor.dtype in CARRIER_DTYPES
    ]
    return FoundModel(sources, "checkpoint", contextlib.ExitStack())
