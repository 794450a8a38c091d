"""A model's tensors by name, as attacks take and return them."""

from collections.abc import Mapping

import torch

State = Mapping[str, torch.Tensor]
"""What `state_dict` returns."""


def weights_of(state: State) -> dict[str, torch.Tensor]:
    """The tensors that attacks on weights change: floating, of two or more dimensions.

    Biases, norm scales and running statistics are left alone: they are few and sensitive.
    """
    return {name: v for name, v in state.items() if v.is_floating_point() and v.dim() > 1}
