"""Pressing signed targets: chosen weights are pulled to ±β.

The loss of a bit is the squared distance of its weight to β, or to −β for a 0; only the chosen
weights feel it. The finishing step sets wrong weights to the margin of the terms, the nearest
ones first, for as long as the budget lasts.
"""

import numpy as np
import torch

from polo.embedding.linear import weight_of
from polo.protocol.detection import MILLION
from polo.protocol.records import Terms
from polo.watermark.mark import Mark
from polo.watermark.signed import places

BETA = 1 / 64
"""What chosen weights are pulled to."""


class SignedPress:
    """Presses one mark of the scheme `signed`; see `polo.embedding.presses.Press`."""

    graphed = True

    def __init__(self, mark: Mark, terms: Terms, device: torch.device) -> None:
        chosen = np.stack([places(mark, group) for group in range(mark.groups)])
        self._places = torch.from_numpy(chosen)
        self._signs = 2 * torch.from_numpy(mark.bits).double() - 1
        self._budget = terms.finish.budget / MILLION
        self._margin = terms.finish.margin / MILLION
        self._weight = weight_of(mark)
        blocks = torch.zeros(mark.groups, mark.group_weights, dtype=torch.float64)
        shape = (len(mark.blocks), mark.scheme.block)
        aims = blocks.scatter(1, self._places, BETA * self._signs).reshape(shape)
        # Dense, and nothing where no bit sits: two operations a step, and no scattered writes.
        self._aims = aims.to(device=device, dtype=torch.float32)
        self._pull = (aims != 0).to(device=device, dtype=torch.float32) * (2 * self._weight)

    def loss(self, values: torch.Tensor) -> torch.Tensor:
        """λl of the mark at these weights."""
        chosen = values.reshape(len(self._signs), -1).gather(1, self._places)
        return (chosen - BETA * self._signs.to(values)).square().sum() * self._weight

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights."""
        return (values - self._aims).mul_(self._pull)

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The weights with wrong bits corrected as far as the budget goes."""
        weights = values.double().cpu().reshape(len(self._signs), -1)
        norms = weights.norm(dim=1, keepdim=True)
        chosen, wish = weights.gather(1, self._places), self._margin * norms * self._signs
        wrong = chosen * self._signs <= 0
        costs = torch.where(wrong, (wish - chosen).square(), torch.inf)
        nearest, order = costs.sort(dim=1, stable=True)
        paid = nearest.cumsum(dim=1) <= (self._budget * norms).square()
        turned = torch.zeros_like(wrong).scatter(1, order, paid)
        return weights.scatter(1, self._places, torch.where(turned, wish, chosen)).reshape(
            values.shape
        )
