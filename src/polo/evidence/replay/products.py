"""Which part of a step's products must be made: what is zero all through changes nothing.

A layer makes three products in a step: forward, back to its inputs, and its weights' gradient. Who
knows that inputs are zero leaves them out of the first, and who knows that units pass nothing on
leaves them out of the others; all comes out to the bit.
"""

from collections.abc import Mapping
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
        self._seen: list[tuple[str, int, float]] = []

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
        """Note over how many rows a layer was used, and which part of its inputs were not zero."""
        given = inputs[0] if inputs else None
        if isinstance(given, torch.Tensor) and isinstance(output, torch.Tensor):
            at = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
            features = given.to_dense().movedim(at, -1)
            live = (features.reshape(-1, features.shape[-1]) != 0).any(0).double().mean()
            self._seen.append((name, output.numel() // len(layer.weight), float(live)))

    def left(
        self, slopes: Mapping[str, torch.Tensor], depths: Mapping[str, float] | None = None
    ) -> float:
        """Part of all products that must be made.

        Layers that are not trained do not count. Where no layer is known, all trained numbers do,
        as if each took part in one product of every kind.

        Args:
            slopes: The gradients that the pass came to, by name.
            depths: Which part of each tensor's matter; by default all that are not zero.
        """
        moved = {
            name: float((slope.to_dense() != 0).double().mean()) for name, slope in slopes.items()
        }
        seen = [one for one in self._seen if one[0] in slopes]
        seen = seen or [(name, 1, 1.0) for name in slopes]
        sizes = [rows * slopes[name].numel() for name, rows, _ in seen]
        parts = [(live + 2 * moved[name]) / 3 for name, _, live in seen]
        if depths is not None:
            parts = [part * depths[name] for part, (name, *_) in zip(parts, seen, strict=True)]
        made = sum(size * part for size, part in zip(sizes, parts, strict=True))
        return made / sum(sizes) if any(sizes) else 1.0
