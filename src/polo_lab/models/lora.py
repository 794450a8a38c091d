"""Low-rank adapters (Hu et al. 2021) on the linear layers of a frozen model."""

import math

import torch
from torch import nn

from polo.evidence.rules import Constant, Normal, Rule


class LoRALinear(nn.Module):
    """A frozen linear layer plus the product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        base.requires_grad_(False)

    def start_rules(self) -> dict[str, Rule]:
        """How the adapter begins: as a correction of zero."""
        return {"lora_A": Normal(1 / math.sqrt(self.base.in_features)), "lora_B": Constant(0.0)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the frozen layer says, and the adapter's correction."""
        correction = (x @ self.lora_A.T) @ self.lora_B.T
        result: torch.Tensor = self.base(x) + self.scale * correction
        return result


def add_lora(model: nn.Module, rank: int = 8, alpha: float = 16.0) -> nn.Module:
    """Freeze a model and put an adapter on every linear layer of its own; returns the model."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, LoRALinear(child, rank, alpha))
    return model
