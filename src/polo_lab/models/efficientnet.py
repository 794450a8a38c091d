"""EfficientNet-B0 (Tan and Le 2019) for images of 32 × 32: the stem keeps their size."""

import torch
from torch import nn
from torch.nn import functional

_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Widening, kernel, stride, channels and blocks of each stage: the paper's table 1."""

_STEM, _LAST = 32, 1280
_DROPPED = 0.2


class Squeeze(nn.Module):
    """Each channel weighed by what all channels are on average."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The channels, weighed."""
        weight = torch.sigmoid(self.up(functional.silu(self.down(x.mean((2, 3), keepdim=True)))))
        return x * weight


class Inverted(nn.Module):
    """Widen, filter every channel by itself, weigh, narrow; a shortcut where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, wider: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * wider
        layers = _normed(inputs, inner, 1, 1) if wider > 1 else []
        layers += _normed(inner, inner, kernel, stride, groups=inner)
        layers.append(Squeeze(inner, max(1, inputs // 4)))
        layers += _normed(inner, outputs, 1, 1)[:-1]
        self.layers = nn.Sequential(*layers)
        self.beside = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        y: torch.Tensor = self.layers(x)
        return x + y if self.beside else y


class EfficientNet(nn.Module):
    """EfficientNet-B0."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        layers = _normed(channels, _STEM, 3, 1)
        inputs = _STEM
        for wider, kernel, stride, outputs, count in _STAGES:
            for at in range(count):
                layers.append(Inverted(inputs, outputs, wider, kernel, 1 if at else stride))
                inputs = outputs
        layers += _normed(inputs, _LAST, 1, 1)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(_LAST, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        found = functional.dropout(self.features(x).mean((2, 3)), _DROPPED, self.training)
        scores: torch.Tensor = self.head(found)
        return scores


def _normed(
    inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1
) -> list[nn.Module]:
    """A convolution, its batch-norm and SiLU."""
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(outputs), nn.SiLU(inplace=True)]
