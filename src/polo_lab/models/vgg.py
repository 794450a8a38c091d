"""VGG with batch-norm."""

import torch
from torch import nn


class VGG(nn.Module):
    """Stages of convolution, batch-norm and ReLU, a pooling after each."""

    def __init__(
        self, channels: int = 1, width: int = 16, stages: int = 2, depth: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for stage in range(stages):
            outputs = width * 2**stage
            for _ in range(depth):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
                layers.append(nn.ReLU())
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        scores: torch.Tensor = self.head(self.features(x).mean((2, 3)))
        return scores


_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of the five stages of configuration D."""


class VGG16(nn.Module):
    """Simonyan and Zisserman's configuration D with batch-norm, for images of 32 × 32 and more.

    Its thirteen convolutions are the original's; of the three linear layers, which take nine tenths
    of the original's weights, one is left, as is usual for small images.
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for outputs, count in _VGG16:
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
                layers.append(nn.ReLU(inplace=True))
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        scores: torch.Tensor = self.head(self.features(x).mean((2, 3)))
        return scores
