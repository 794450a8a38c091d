"""Reading a mark out of a checkpoint, whole or opened."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import WeightsError
from polo.protocol.carrier import Block, Carrier
from polo.protocol.detection import Reading
from polo.protocol.layout import CHUNK_BYTES, DTYPE_BYTES, Layout, Tensor
from polo.watermark.mark import Mark
from polo.watermark.schemes import matches
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint

_TOGETHER = 256
"""Blocks that are read at a time: 4 MiB of the largest."""


def read(mark: Mark, values: NDArray[np.floating[Any]]) -> Reading:
    """Read a mark out of its weights, given as blocks × weights."""
    right = matches(mark, values, range(mark.groups))
    return Reading(mark.scheme.bits, int(right.sum()))


def values_of(mark: Mark, carrier: Carrier, checkpoint: Checkpoint) -> NDArray[np.floating[Any]]:
    """The mark's weights in a checkpoint, as blocks × weights."""
    where, tensors = [carrier.locate(block) for block in mark.blocks], carrier.layout.tensors
    wide = any(tensors[block.tensor].dtype == "F64" for block in where)
    values = np.empty((len(where), carrier.block), np.float64 if wide else np.float32)
    for at in range(0, len(where), _TOGETHER):
        part = slice(at, at + _TOGETHER)
        _fill(values[part], where[part], tensors, checkpoint)
    return values


def _fill(
    rows: NDArray[np.floating[Any]],
    where: Sequence[Block],
    tensors: Sequence[Tensor],
    checkpoint: Checkpoint,
) -> None:
    """Read a block into each row, those of one type at once: calls for each would take longest."""
    raw = list[bytes | memoryview]()
    for tensor, element in where:
        size = DTYPE_BYTES[tensors[tensor].dtype]
        raw.append(checkpoint.read(tensor, element * size, (element + rows.shape[1]) * size))
    kinds = [tensors[block.tensor].dtype for block in where]
    for kind in dict.fromkeys(kinds):
        part = [at for at, own in enumerate(kinds) if own == kind]
        data = b"".join([raw[at] for at in part])
        if not dtypes.is_finite(data, kind):
            names = (tensors[block.tensor].name for block in where)
            raise _not_finite(zip(raw, kinds, names, strict=True))
        rows[part] = dtypes.to_float(data, kind).reshape(len(part), -1)


def _not_finite(blocks: Iterable[tuple[bytes | memoryview, str, str]]) -> WeightsError:
    """What names the tensor of the first block that is not finite."""
    place = next(name for data, kind, name in blocks if not dtypes.is_finite(data, kind))
    return WeightsError("the weights are not finite (NaN or infinity)", place=place)


class OpenedCheckpoint:
    """The part of a checkpoint that an opening shows, read like a whole one."""

    def __init__(self, layout: Layout, chunks: Mapping[int, bytes | memoryview]) -> None:
        self._layout = layout
        self._chunks = chunks

    @property
    def layout(self) -> Layout:
        """Names, types and shapes of the whole checkpoint."""
        return self._layout

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes within one opened chunk."""
        chunk, offset = divmod(start, CHUNK_BYTES)
        data = self._chunks[self._layout.first_leaf[tensor] + chunk]
        return data[offset : offset + stop - start]
