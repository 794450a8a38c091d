"""MLP-Mixer: linear layers across patches and across channels in turn."""

import torch
from torch import nn
from torch.nn import functional


class MixerBlock(nn.Module):
    """Mix patches, then channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Linear(patches, 2 * patches)
        self.back = nn.Linear(2 * patches, patches)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        y = self.norm1(x).transpose(1, 2)
        x = x + self.back(functional.gelu(self.across(y))).transpose(1, 2)
        step: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + step


class Mixer(nn.Module):
    """Patches, a few blocks, a head on their mean."""

    def __init__(
        self, channels: int = 1, size: int = 8, patch: int = 2, width: int = 32, depth: int = 2,
        classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        count = (size // patch) ** 2
        self.blocks = nn.Sequential(*(MixerBlock(count, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        scores: torch.Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return scores
