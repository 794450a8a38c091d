"""Wide residual networks (Zagoruyko and Komodakis 2016): activation first, few and wide blocks."""

import torch
from torch import nn
from torch.nn import functional


class WideBlock(nn.Module):
    """Batch-norm and ReLU before each of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream; where it changes its width, after the activation."""
        y = functional.relu(self.bn1(x))
        beside: torch.Tensor = self.shortcut(y) if self.shortcut else x
        step: torch.Tensor = self.conv2(functional.relu(self.bn2(self.conv1(y))))
        return beside + step


class WideResNet(nn.Module):
    """WRN-depth-width; depth is 6n + 4."""

    def __init__(
        self, classes: int = 10, depth: int = 28, width: int = 10, channels: int = 3
    ) -> None:
        super().__init__()
        count, odd = divmod(depth - 4, 6)
        if odd or not count:
            raise ValueError(f"a wide residual network's depth is 6n + 4, not {depth}")
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        inputs = 16
        for stage in range(3):
            for at in range(count):
                outputs = 16 * width * 2**stage
                blocks.append(WideBlock(inputs, outputs, 2 if stage and at == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = functional.relu(self.bn(self.blocks(self.stem(x))))
        scores: torch.Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return scores
