"""Reading a mark out of a checkpoint, whole or opened."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import WeightsError
from polo.protocol.carrier import Carrier
from polo.protocol.detection import Reading
from polo.protocol.layout import CHUNK_BYTES, DTYPE_BYTES, Layout
from polo.watermark.mark import Mark
from polo.watermark.schemes import matches
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint


def read(mark: Mark, values: NDArray[np.floating[Any]]) -> Reading:
    """Read a mark out of its weights, given as blocks × weights."""
    right = matches(mark, values, range(mark.groups))
    return Reading(mark.scheme.bits, int(right.sum()))


def values_of(mark: Mark, carrier: Carrier, checkpoint: Checkpoint) -> NDArray[np.floating[Any]]:
    """The mark's weights in a checkpoint, as blocks × weights."""
    rows = []
    for block in mark.blocks:
        where = carrier.locate(block)
        tensor = carrier.layout.tensors[where.tensor]
        size = DTYPE_BYTES[tensor.dtype]
        start = where.element * size
        data = checkpoint.read(where.tensor, start, start + carrier.block * size)
        if not dtypes.is_finite(data, tensor.dtype):
            raise WeightsError("the weights are not finite (NaN or infinity)", place=tensor.name)
        rows.append(dtypes.to_float(data, tensor.dtype))
    return np.stack(rows)


class OpenedCheckpoint:
    """The part of a checkpoint that an opening shows, read like a whole one."""

    def __init__(self, layout: Layout, chunks: Mapping[int, bytes]) -> None:
        self._layout = layout
        self._chunks = chunks

    @property
    def layout(self) -> Layout:
        """Names, types and shapes of the whole checkpoint."""
        return self._layout

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        """Bytes within one opened chunk."""
        chunk, offset = divmod(start, CHUNK_BYTES)
        data = self._chunks[self._layout.first_leaf[tensor] + chunk]
        return data[offset : offset + stop - start]
