"""A vision transformer on `nn.MultiheadAttention`."""

import torch
from torch import nn
from torch.nn import functional

from polo.evidence.rules import Normal


class Block(nn.Module):
    """Attention and a two-layer network, each after a layer-norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        step: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + step


class ViT(nn.Module):
    """Patches, a class token, learned positions, a few blocks."""

    def __init__(
        self, channels: int = 1, size: int = 8, patch: int = 2, width: int = 32, heads: int = 4,
        depth: int = 2, classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        count = (size // patch) ** 2 + 1
        self.positions = nn.Parameter(torch.randn(1, count, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def start_rules(self) -> dict[str, Normal]:
        """How class token and positions begin."""
        return {"token": Normal(0.02), "positions": Normal(0.02)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        scores: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return scores
