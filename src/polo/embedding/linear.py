"""What presses share whose bits are signs of sums Xw: the key on the device, and finishing.

The rows of 0-bits are turned, so that the sum of a right bit is above zero whichever it is.
"""

import numpy as np
import torch

from polo.embedding.finishing import correct
from polo.embedding.rows import Rows
from polo.protocol.detection import MILLION
from polo.protocol.records import Terms
from polo.watermark.mark import Mark


class LinearPress:
    """The rows that read a mark, on a device; the loss is left to who inherits.

    Args:
        mark: The mark.
        terms: The terms.
        device: Where the weights are.
        columns: Columns of a group's key; by default there is one for each weight.

    Attributes:
        groups: Groups of the mark.
        rows: X with the rows of 0-bits turned.
        margin: How far past zero a bit should stand, relative to its group's norm.
        budget: Most that the finishing step moves a group, relative to its norm.
        weight: λ of one bit's loss.
    """

    def __init__(
        self, mark: Mark, terms: Terms, device: torch.device, *, columns: int | None = None
    ) -> None:
        signs = mark.signs_of(range(mark.groups), columns)
        self.groups = mark.groups
        self.rows = Rows(np.where(mark.bits[:, :, None], signs, -signs), device)
        self.budget = terms.finish.budget / MILLION
        self.margin = terms.finish.margin / MILLION
        self.weight = weight_of(mark)

    @property
    def graphed(self) -> bool:
        """Whether pressing may be recorded."""
        return self.rows.graphed

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Xw, by group and bit; above zero where a bit is right."""
        return self.rows.times(values)

    def back(self, slopes: torch.Tensor, weight: float) -> torch.Tensor:
        """Xᵀ times slopes by group and bit, times a weight, as groups × weights."""
        return self.rows.back(slopes, weight)

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The weights with wrong bits corrected as far as the budget goes."""
        # In double precision on the CPU: small, and the same on every device.
        weights = values.double().cpu().reshape(self.groups, -1)
        corrected = correct(self.wanted(), weights, margin=self.margin, budget=self.budget)
        return corrected.reshape(values.shape)

    def wanted(self) -> torch.Tensor:
        """X in double precision on the CPU, over all weights of a group."""
        return self.rows.doubles()


def weight_of(mark: Mark) -> float:
    """λ of one bit's loss, as the terms' strength, reduction and `every` make it."""
    scheme = mark.scheme
    share = 1 if scheme.reduction == "sum" else 1 / scheme.bits
    return scheme.strength / MILLION * scheme.every * share
