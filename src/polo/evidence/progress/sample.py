"""The weights that level progress looks at: blocks of the carrier, all or every k-th."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polo.protocol.carrier import Carrier
from polo.protocol.layout import DTYPE_BYTES
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

MOST_WEIGHTS = 2**20
"""So few bound the memory, and are far more than any of the statistics needs."""

Values = NDArray[np.float64]
Rows = NDArray[np.bool_]


class Sample:
    """Blocks 0, k, 2k, … of a carrier; a row each, `carrier.block` weights wide.

    Args:
        carrier: The tensors that carry marks.
        most: Most weights to look at.
    """

    def __init__(self, carrier: Carrier, most: int = MOST_WEIGHTS) -> None:
        self._carrier = carrier
        self._step = max(1, -(-carrier.blocks * carrier.block // most))
        self._where = [carrier.locate(at) for at in range(0, carrier.blocks, self._step)]
        tensors = [where.tensor for where in self._where]
        self._tensor = np.unique(tensors, return_inverse=True)[1]

    def __len__(self) -> int:
        return len(self._where)

    def values(self, checkpoint: Checkpoint) -> Values:
        """The weights in a checkpoint."""
        rows = []
        for where in self._where:
            dtype = self._carrier.layout.tensors[where.tensor].dtype
            size = DTYPE_BYTES[dtype]
            start = where.element * size
            data = checkpoint.read(where.tensor, start, start + self._carrier.block * size)
            rows.append(dtypes.to_float(data, dtype).astype(np.float64))
        return np.stack(rows)

    def gradients(self, parameters: Mapping[str, "torch.nn.Parameter"]) -> Values:
        """The gradients of the same weights in a live model; zeros where there is none."""
        found = np.zeros((len(self), self._carrier.block))
        by_tensor: dict[int, list[int]] = {}
        for row, where in enumerate(self._where):
            by_tensor.setdefault(where.tensor, []).append(row)
        for tensor, rows in by_tensor.items():
            gradient = parameters[self._carrier.layout.tensors[tensor].name].grad
            if gradient is None:
                continue
            flat = gradient.detach().to_dense().double().cpu().numpy().reshape(-1)
            for row in rows:
                start = self._where[row].element
                found[row] = flat[start : start + self._carrier.block]
        return found

    def marked(self, blocks: Iterable[int]) -> Rows:
        """Which rows lie in these blocks."""
        rows = np.zeros(len(self), dtype=np.bool_)
        rows[[block // self._step for block in blocks if block % self._step == 0]] = True
        return rows

    def mean_squares(self, values: Values) -> Values:
        """For each row the mean square of its tensor, as far as it is looked at."""
        own = np.mean(np.square(values), axis=1)
        sums, counts = np.bincount(self._tensor, own), np.bincount(self._tensor)
        means: Values = (sums / counts)[self._tensor]
        return means
