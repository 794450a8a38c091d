"""Pressing FedIPR marks: a hinge with a margin, in closed form.

The loss of a bit whose row of the key is x, turned if the bit is 0, is relu(m‖w‖ − xw): nothing
once the bit stands clear by the margin m of the terms, relative to the norm of its group. Its
gradient is m·w/‖w‖ − x while it does not.
"""

import torch
from torch.nn.functional import relu

from polo.embedding.linear import LinearPress

_LEAST = 1e-30


class FediprPress(LinearPress):
    """Presses one mark of `fedipr` or `fedipr-kernel`; see `polo.embedding.presses.Press`."""

    def loss(self, values: torch.Tensor) -> torch.Tensor:
        """λl of the mark at these weights."""
        return relu(self.margin * self._norms(values) - self.sums(values)).sum() * self.weight

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights."""
        norms = self._norms(values)
        short = (self.sums(values) < self.margin * norms).to(values.dtype)
        shrink = short.sum(dim=1, keepdim=True).div_(norms)
        pull = self.back(short, -self.weight)
        grouped = values.reshape(self.groups, -1)
        return pull.addcmul_(shrink, grouped, value=self.weight * self.margin).reshape(values.shape)

    def _norms(self, values: torch.Tensor) -> torch.Tensor:
        norms: torch.Tensor = values.reshape(self.groups, -1).norm(dim=1, keepdim=True)
        return norms.clamp(min=_LEAST)
