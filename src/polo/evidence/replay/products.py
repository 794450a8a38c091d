"""Which part of a step's products must be made: what is zero all through changes nothing.

A layer makes three products in a step: forward, back to its inputs, and its weights' gradient. Who
knows that inputs are zero leaves them out of the first, and who knows that units pass nothing on
leaves them out of the others; all comes out to the bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import nn

from polo.evidence.replay.state import parameter_names

_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class Products:
    """Watches the layers of a model in a pass.

        with Products(model) as products:
            slopes = ...  # forward and backward
        products.left(slopes)

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        names = parameter_names(model)
        found = (layer for layer in model.modules() if isinstance(layer, _Layer))
        self._layers = [(names[id(own.weight)], own) for own in found if id(own.weight) in names]
        self._seen: list[_Use] = []

    def __enter__(self) -> Self:
        self._hooks = [
            layer.register_forward_hook(partial(self._see, name)) for name, layer in self._layers
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _see(self, name: str, layer: _Layer, inputs: tuple[object, ...], output: object) -> None:
        """Note over how many rows a layer was used, and which of its inputs were not zero."""
        given = inputs[0] if inputs else None
        if isinstance(given, torch.Tensor) and isinstance(output, torch.Tensor):
            at = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
            features = given.to_dense().movedim(at, -1)
            live = (features.reshape(-1, features.shape[-1]) != 0).any(0)
            # What is zero in the data is no unit that fell silent: nobody computes with it.
            own = not given.requires_grad and len(live) == layer.weight.shape[1]
            self._seen.append(_Use(name, output.numel() // len(layer.weight), live, own))

    def left(
        self, slopes: Mapping[str, torch.Tensor], depths: Mapping[str, float] | None = None
    ) -> float:
        """Part of all products that must be made.

        Layers that are not trained do not count. Where no layer is known, all trained numbers do,
        as if each took part in one product of every kind.

        Args:
            slopes: The gradients that the pass came to, by name.
            depths: Which part of each tensor's must be computed; by default all that are not zero.
        """
        seen = [use for use in self._seen if use.name in slopes]
        seen = seen or [_Use(name, 1, torch.ones(1, dtype=torch.bool), False) for name in slopes]
        made = total = 0.0
        for use in seen:
            size, part = use.products(slopes[use.name].to_dense())
            total += size
            made += size * part * (1.0 if depths is None else depths[use.name])
        return made / total if total else 1.0


@dataclass(frozen=True)
class _Use:
    """One use of a layer.

    Attributes:
        name: Of its weights.
        rows: Over how many rows.
        live: Which of its input features were not zero.
        data: Whether these are the data's own, and not what other layers made of them.
    """

    name: str
    rows: int
    live: torch.Tensor
    data: bool

    def products(self, slopes: torch.Tensor) -> tuple[int, float]:
        """How many products of a kind there are, and which part of all must be made."""
        there = slopes != 0
        live = 1.0 if self.data else float(self.live.double().mean())
        if self.data:
            there = there[:, self.live.to(there.device)]
        moved = float(there.double().mean()) if there.numel() else 0.0
        return self.rows * there.numel(), (live + 2 * moved) / 3
