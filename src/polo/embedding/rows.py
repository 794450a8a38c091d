"""The rows of ±1 that read a mark's bits, on the device that trains.

Small keys lie there as float32, so that products with weights are as good as float32 allows. A
dense key of thousands of bits would take more than a hundred megabytes; such a key is kept in
bits, and some rows at a time are spread out for each product.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding

from polo.embedding import products

_PLAIN = 2**22
"""Keys of at most so many signs are kept as float32: 16 MiB."""

_SPREAD = 3 * 2**19
"""Signs that are spread out at a time: 6 MiB, and twice that where one follows another."""


class Rows:
    """Rows of ±1, as groups × bits × columns.

    Args:
        signs: The rows.
        device: Where they are to be used.
    """

    def __init__(self, signs: NDArray[np.int8], device: torch.device) -> None:
        self._groups, self._bits, self._columns = signs.shape
        self._packed = signs.size > _PLAIN
        held = np.packbits(signs > 0, axis=2, bitorder="little") if self._packed else signs
        kept = torch.uint8 if self._packed else torch.float32
        self._held = torch.from_numpy(held).to(device=device, dtype=kept)
        if self._packed:
            self._zero = torch.zeros(1, 1, 1, device=device)
            bytes_ = np.arange(256, dtype=np.uint8)[:, None]
            table = np.unpackbits(bytes_, axis=1, bitorder="little").astype(np.float32) * 2 - 1
            self._table = torch.from_numpy(table).to(device)

    @property
    def graphed(self) -> bool:
        """Whether products with them may be recorded as a graph."""
        return not self._packed and products.fits(self._held)

    def times(self, weights: torch.Tensor) -> torch.Tensor:
        """Each row's sum, by group and bit, of weights as groups × columns."""
        if not self._packed:
            return products.times(self._held, weights.reshape(self._groups, self._columns))
        column = weights.reshape(self._groups, self._columns, 1)
        sums = [torch.bmm(rows.to(weights.dtype), column) for _, rows in self._some()]
        return torch.cat(sums, dim=1).squeeze(2)

    def back(self, slopes: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """Rows summed by slopes as groups × bits, times a weight; as groups × columns."""
        if not self._packed:
            return products.back(self._held, slopes * weight)
        total, beta = self._zero, 0
        for at, rows in self._some():
            some = slopes[:, at : at + rows.shape[1]].unsqueeze(1)
            total = torch.baddbmm(total, some, rows, beta=beta, alpha=weight)
            beta = 1
        return total.squeeze(1)

    def doubles(self) -> torch.Tensor:
        """All rows in double precision on the CPU."""
        return torch.cat([rows.double().cpu() for _, rows in self._some()], dim=1)

    def _some(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Rows as float32, some at a time, with the number of the first."""
        if not self._packed:
            yield 0, self._held
            return
        step = max(1, _SPREAD // (self._groups * self._columns))
        for at in range(0, self._bits, step):
            yield at, embedding(self._held[:, at : at + step].int(), self._table).flatten(2)
