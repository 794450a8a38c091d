"""Digits for a network with thousands of norm scales, so that marks fit into those alone."""

import torch
from torch import nn

from polo_lab.tasks.digits import DigitsMLP


class NormedBlock(nn.Module):
    """Two linear layers, each with a batch-norm, beside a shortcut."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.widen, self.norm1 = nn.Linear(width, inner, bias=False), nn.BatchNorm1d(inner)
        self.narrow, self.norm2 = nn.Linear(inner, width, bias=False), nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        y = torch.relu(self.norm1(self.widen(x)))
        step: torch.Tensor = self.norm2(self.narrow(y))
        return x + step


class DigitsNorms(DigitsMLP):
    """Eight residual blocks: about 540,000 weights, of them 4608 norm scales."""

    name = "lab-digits-norms"

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        blocks = [NormedBlock(64, 512) for _ in range(8)]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), *blocks, nn.Linear(64, 10))
