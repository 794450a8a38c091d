"""Pressing EDNN marks: the gradient in closed form, and the finishing step.

The loss of a group with signs X, bits b and weights w is the binary cross-entropy of
sigmoid(Xw) against b, summed over the bits or averaged over the whole mark as the terms say;
its gradient is Xᵀ(sigmoid(Xw) − b).
"""

import numpy as np
import torch

from polo.embedding.finishing import correct
from polo.protocol.detection import MILLION
from polo.protocol.records import Terms
from polo.watermark.mark import Mark


class EdnnPress:
    """Presses one EDNN mark; see `polo.embedding.presses.Press`."""

    def __init__(self, mark: Mark, terms: Terms, device: torch.device) -> None:
        signs = np.stack([mark.signs(group) for group in range(mark.groups)])
        self._signs = torch.from_numpy(signs).to(device=device, dtype=torch.float32)
        self._bits = torch.from_numpy(mark.bits).to(device=device, dtype=torch.float32)
        self._budget = terms.finish.budget / MILLION
        self._margin = terms.finish.margin / MILLION
        scheme = mark.scheme
        share = 1 if scheme.reduction == "sum" else 1 / scheme.bits
        self._weight = scheme.strength / MILLION * scheme.every * share

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights."""
        grouped = values.reshape(len(self._signs), -1, 1)
        wrong = torch.sigmoid(torch.bmm(self._signs, grouped).squeeze(2)) - self._bits
        gradient = torch.bmm(wrong.unsqueeze(1), self._signs)
        return gradient.reshape(values.shape).mul_(self._weight)

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The weights with wrong bits corrected as far as the budget goes."""
        # In double precision on the CPU: small, and the same on every device.
        weights = values.double().cpu().reshape(len(self._signs), -1)
        wanted = self._signs.double().cpu() * (2 * self._bits.double().cpu() - 1).unsqueeze(2)
        corrected = correct(wanted, weights, margin=self._margin, budget=self._budget)
        return corrected.reshape(values.shape)
