"""A causal language model: fused q, k and v, GELU, output tied to the embedding."""

import torch
from torch import nn
from torch.nn import functional

from polo.evidence.rules import Normal


class CausalAttention(nn.Module):
    """Self-attention that looks back only."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What each position gathers from those before it."""
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gathered: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return gathered


class Block(nn.Module):
    """Attention and a two-layer network, each after a layer-norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        x = x + self.attention(self.norm1(x))
        step: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + step


class GPT(nn.Module):
    """A small decoder."""

    def __init__(
        self, vocabulary: int = 17, length: int = 64, width: int = 32, heads: int = 4,
        depth: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.1)

    def start_rules(self) -> dict[str, Normal]:
        """How both tables begin; the output goes with the first."""
        return {"tokens.weight": Normal(0.1), "positions.weight": Normal(0.1)}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, at every position."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.tokens(ids) + self.positions(places))
        scores: torch.Tensor = self.head(self.norm(x))
        return scores
