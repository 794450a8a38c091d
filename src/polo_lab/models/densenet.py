"""Layers that see the outputs of all layers before them, after DenseNet."""

import torch
from torch import nn
from torch.nn import functional


class DenseLayer(nn.Module):
    """Batch-norm, ReLU, convolution; the result is put beside the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input with `growth` more channels."""
        return torch.cat([x, self.conv(functional.relu(self.bn(x)))], dim=1)


class DenseNet(nn.Module):
    """Two dense blocks with a transition in between."""

    def __init__(
        self, channels: int = 1, width: int = 16, growth: int = 12, depth: int = 3,
        classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        wide = width + depth * growth
        self.first = nn.Sequential(*(DenseLayer(width + i * growth, growth) for i in range(depth)))
        self.transition = nn.Conv2d(wide, width, 1, bias=False)
        self.second = nn.Sequential(*(DenseLayer(width + i * growth, growth) for i in range(depth)))
        self.bn = nn.BatchNorm2d(wide)
        self.head = nn.Linear(wide, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = functional.avg_pool2d(self.transition(self.first(self.stem(x))), 2)
        x = functional.relu(self.bn(self.second(x)))
        scores: torch.Tensor = self.head(x.mean((2, 3)))
        return scores
