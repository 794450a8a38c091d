"""A live model, read like a found one."""

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from polo.protocol.layout import CARRIER_DTYPES
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.found_model import FoundModel, FoundTensor, Source, describe
from polo.weights.stored import Stored

if TYPE_CHECKING:
    import torch


def found_of(model: "torch.nn.Module | Mapping[str, Any]") -> FoundModel:
    """A module or a state dict as a found model; values are read when they are asked for.

    >>> import numpy
    >>> found_of({"fc.weight": numpy.eye(2, dtype=numpy.float32)}).read("fc.weight", 0, 3).tolist()
    [1.0, 0.0, 0.0]
    """
    checkpoint = checkpoint_of(model)
    sources = []
    for at, tensor in enumerate(checkpoint.layout.tensors):
        readable = tensor.dtype in CARRIER_DTYPES
        refusal = "" if readable else f"values of type {tensor.dtype} are no weights"
        stored = Stored(tensor, functools.partial(_bytes, checkpoint, at))
        found = FoundTensor(tensor.name, tensor.shape, tensor.dtype, refusal)
        sources.append(Source(found, stored.floats if readable else None))
    layout = checkpoint.layout
    line = describe("a live model", len(layout.tensors), layout.size)
    return FoundModel(sources, line, ExitStack())


def _bytes(checkpoint: Checkpoint, tensor: int, start: int, stop: int) -> bytes:
    return bytes(checkpoint.read(tensor, start, stop))
