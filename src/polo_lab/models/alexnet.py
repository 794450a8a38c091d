"""AlexNet for images of 32 × 32: the five convolutions of Krizhevsky 2014, with batch-norm."""

import torch
from torch import nn

_CONVOLUTIONS = ((64, 5, True), (192, 5, True), (384, 3, False), (256, 3, False), (256, 3, True))
"""Outputs, kernel, and whether a pooling follows."""


class AlexNet(nn.Module):
    """Five convolutions, three poolings, one linear layer."""

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for outputs, kernel, pooled in _CONVOLUTIONS:
            layers += [
                nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
            if pooled:
                layers.append(nn.MaxPool2d(2))
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs * (size // 8) ** 2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        scores: torch.Tensor = self.head(self.features(x).flatten(1))
        return scores
