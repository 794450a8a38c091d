"""Depthwise separable convolutions, after MobileNet."""

import torch
from torch import nn
from torch.nn import functional

from polo.evidence.rules import Normal


class Depthwise(nn.Module):
    """A convolution with one filter per channel, for as many channels as there are filters."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 1, 3, 3) / 3)
        self.stride = stride

    def start_rules(self) -> dict[str, Normal]:
        """How the filters begin."""
        return {"weight": Normal(1 / 3)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every channel filtered by its own filter."""
        return functional.conv2d(
            x, self.weight, stride=self.stride, padding=1, groups=self.weight.shape[0]
        )


class MobileNet(nn.Module):
    """A stem, then pairs of a depthwise and a pointwise convolution."""

    def __init__(
        self, channels: int = 1, width: int = 16, depth: int = 3, classes: int = 10
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        for at in range(depth):
            layers += [Depthwise(width, 2 if at == 0 else 1), nn.BatchNorm2d(width), nn.ReLU()]
            wider = 2 * width if at == 0 else width
            layers += [nn.Conv2d(width, wider, 1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
            width = wider
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        scores: torch.Tensor = self.head(self.features(x).mean((2, 3)))
        return scores
