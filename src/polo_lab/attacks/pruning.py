"""Pruning: the smallest weights of the whole model are set to zero.

The paper's *pruning or weight masking* (Table of attacks, class WMA): it needs no training data.
"""

import torch

from polo_lab.attacks.state import State, weights_of


def prune(state: State, share: float) -> dict[str, torch.Tensor]:
    """Zero a share of all weights, the smallest by magnitude, across all layers at once.

    Args:
        state: The stolen tensors; they stay as they are.
        share: Part of the weights to zero, from 0 to 1; exactly that many are, to the nearest.
    """
    weights = weights_of(state)
    if not weights:
        return dict(state)
    flat = torch.cat([value.detach().reshape(-1).double() for value in weights.values()])
    flat[flat.abs().topk(round(share * len(flat)), largest=False).indices] = 0
    parts = flat.split([value.numel() for value in weights.values()])
    pruned = {
        name: part.reshape(value.shape).to(value.dtype)
        for (name, value), part in zip(weights.items(), parts, strict=True)
    }
    return {**state, **pruned}
