"""Fully connected networks, plain or with layer-norm."""

import torch
from torch import nn


class MLP(nn.Module):
    """Linear layers with ReLU in between."""

    def __init__(
        self, inputs: int = 64, width: int = 64, depth: int = 3, classes: int = 10, *,
        norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for at in range(depth - 1):
            layers.append(nn.Linear(inputs if at == 0 else width, width))
            if norm:
                layers.append(nn.LayerNorm(width))
            layers.append(nn.ReLU())
        layers.append(nn.Linear(width, classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images or vectors."""
        scores: torch.Tensor = self.layers(x)
        return scores
