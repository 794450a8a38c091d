"""BERT (Devlin et al. 2018) in the size that Turc et al. 2019 call mini: 4 layers, width 256."""

import torch
from torch import nn
from torch.nn import functional

from polo.evidence.rules import Normal

_SPREAD = 0.02
_DROPPED = 0.1


class Attention(nn.Module):
    """Self-attention over everything that is no padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """What each place gathers."""
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        gathered: torch.Tensor = self.out(found.transpose(1, 2).reshape(batch, length, width))
        return gathered


class Layer(nn.Module):
    """Attention and a two-layer network, each beside a shortcut and before a layer-norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(_DROPPED)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """One layer."""
        x = self.norm1(x + self.dropout(self.attention(x, seen)))
        y = self.down(functional.gelu(self.up(x)))
        out: torch.Tensor = self.norm2(x + self.dropout(y))
        return out


class MiniBERT(nn.Module):
    """An encoder whose first place, after a pooler, gives the class; token 0 is padding."""

    def __init__(
        self, classes: int = 4, vocabulary: int = 30_522, length: int = 512, width: int = 256,
        heads: int = 4, depth: int = 4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.types = nn.Embedding(2, width)
        for table in (self.words, self.places, self.types):
            nn.init.normal_(table.weight, std=_SPREAD)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPPED)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def start_rules(self) -> dict[str, Normal]:
        """How the three tables begin."""
        return {f"{name}.weight": Normal(_SPREAD) for name in ("words", "places", "types")}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Class scores of texts."""
        seen = (ids != 0)[:, None, None, :]
        # One text a sample, so that all tokens are of the first type.
        x = self.words(ids) + self.places.weight[: ids.shape[1]] + self.types.weight[0]
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, seen)
        scores: torch.Tensor = self.head(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
        return scores
