"""ResNet-18 with the stem for small images, and a task around it: 11.2 million weights."""

from functools import cached_property

import torch
from torch import nn
from torch.nn import functional

from polo.tasks.digits import Digits


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        inner = functional.relu(self.bn1(self.conv1(images)))
        inner = self.bn2(self.conv2(inner)) + self.shortcut(images)
        return functional.relu(inner)


def resnet18(classes: int = 10) -> nn.Sequential:
    """ResNet-18 for images of 32 × 32."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Block(inside, outside, stride), _Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


class ResNetDigits:
    """The digits task's images, enlarged to 32 × 32 in three channels, for ResNet-18."""

    name = "resnet18-digits"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.0,)

    def build_model(self) -> nn.Module:
        """ResNet-18, untrained."""
        return resnet18()

    @cached_property
    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels to train on."""
        images, labels = Digits().train_data
        return _enlarged(images), labels

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on the digits task's test images."""
        images, labels = Digits().test_data
        training = model.training
        model.eval()
        guesses = model(_enlarged(images)).argmax(1)
        model.train(training)
        return float((guesses == labels).float().mean())


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """One ordinary training step."""
    optimizer.zero_grad()
    functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def _enlarged(images: torch.Tensor) -> torch.Tensor:
    large = functional.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    return large.expand(-1, 3, -1, -1).contiguous()
