"""Pressing EDNN marks: the gradient in closed form, and the finishing step.

The loss of a group with signs X, bits b and weights w is the binary cross-entropy of
sigmoid(Xw) against b, summed over the bits or averaged over the whole mark as the terms say. With
the rows of 0-bits turned it is the sum of log(1 + exp(−Xw)), and its gradient −Xᵀ sigmoid(−Xw).
"""

import torch
from torch.nn.functional import softplus

from polo.embedding.linear import LinearPress


class EdnnPress(LinearPress):
    """Presses one EDNN mark; see `polo.embedding.presses.Press`."""

    def loss(self, values: torch.Tensor) -> torch.Tensor:
        """λl of the mark at these weights."""
        return softplus(-self.sums(values)).sum() * self.weight

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights."""
        wrong = self.sums(values).neg_().sigmoid_()
        return self.back(wrong, -self.weight).reshape(values.shape)
