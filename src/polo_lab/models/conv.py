"""A plain convolutional network: no norm, pooling, a flattened head."""

import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """Two convolutions with pooling, then two linear layers."""

    def __init__(
        self, channels: int = 1, size: int = 8, width: int = 16, classes: int = 10
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.hidden = nn.Linear(2 * width * (size // 4) ** 2, 4 * width)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.avg_pool2d(functional.leaky_relu(self.conv2(x)), 2)
        x = functional.relu(self.hidden(x.flatten(1)))
        scores: torch.Tensor = self.head(x)
        return scores
