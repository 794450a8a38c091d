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
