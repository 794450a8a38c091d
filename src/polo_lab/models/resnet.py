"""Residual networks: basic blocks, and bottleneck blocks with activation first."""

import torch
from torch import nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            change = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(change, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network for images of 8 × 8 and more, after He et al. 2015 (CIFAR stem)."""

    def __init__(
        self, channels: int = 3, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2),
        classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for at in range(count):
                outputs = width * 2**stage
                layers.append(BasicBlock(inputs, outputs, 2 if stage and at == 0 else 1))
                inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = self.layers(functional.relu(self.bn(self.stem(x))))
        scores: torch.Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores


def resnet18(channels: int = 3, classes: int = 10) -> ResNet:
    """The full network: 11 million weights."""
    return ResNet(channels, 64, (2, 2, 2, 2), classes)


def resnet34(channels: int = 3, classes: int = 10) -> ResNet:
    """The deeper network of basic blocks: 21 million weights."""
    return ResNet(channels, 64, (3, 4, 6, 3), classes)


class Bottleneck(nn.Module):
    """Batch-norm and ReLU before each of three convolutions (He et al. 2016)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, inner, 1, bias=False)
        self.bn2, self.conv2 = (
            nn.BatchNorm2d(inner),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False),
        )
        self.bn3, self.conv3 = nn.BatchNorm2d(inner), nn.Conv2d(inner, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        y = self.conv1(functional.relu(self.bn1(x)))
        y = self.conv2(functional.relu(self.bn2(y)))
        step: torch.Tensor = self.conv3(functional.relu(self.bn3(y)))
        return x + step


class PreActResNet(nn.Module):
    """Bottleneck blocks with activation first, at one resolution."""

    def __init__(
        self, channels: int = 1, width: int = 32, inner: int = 16, depth: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Bottleneck(width, inner) for _ in range(depth)))
        self.bn = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = functional.relu(self.bn(self.blocks(self.stem(x))))
        scores: torch.Tensor = self.head(x.mean((2, 3)))
        return scores
