"""Weights whose marks read at a chosen rate: each bit is pressed right, or wrong, by chance."""

import numpy as np
import torch

from polo.embedding.finishing import correct
from polo.ownership.claimant import Claimant
from polo.ownership.screen import Sample
from polo.ownership.sources import ArraySource
from polo.protocol.carrier import Carrier
from polo.watermark.mark import Mark
from polo.weights import MemoryCheckpoint, checkpoint_of
from polo.weights.found_model import Values

_MARGIN = 0.05
_BUDGET = 1.0


class Weakened:
    """A model's weights to press weak marks into.

    Args:
        state: The model's tensors by name.
        rate: Chance of each bit to be pressed right.
        seed: What the chances are drawn from.
    """

    def __init__(self, state: dict[str, torch.Tensor], rate: float, seed: int) -> None:
        self._state = {name: value.detach().clone() for name, value in state.items()}
        self._rate = rate
        self._random = np.random.default_rng(seed)
        self._layout = self.checkpoint().layout
        self._flat = [self._state[t.name].numpy().reshape(-1) for t in self._layout.tensors]
        self._kept: list[tuple[int, int, Values]] = []
        self.source = ArraySource(dict(enumerate(self._flat)))

    def checkpoint(self) -> MemoryCheckpoint:
        """The weights as they are now."""
        return checkpoint_of(self._state)

    def press(self, claimant: Claimant, chosen: Sample) -> float:
        """Press some groups of some marks, in closed form.

        Returns:
            Part of the bits that the weights hold right afterwards.
        """
        places = [(derived.mark, group) for derived, groups in chosen for group in groups]
        signs = np.stack([mark.signs(group) for mark, group in places]).astype(np.float64)
        bits = np.stack([mark.bits[group] for mark, group in places])
        right = self._random.random(bits.shape) < self._rate
        aims = np.where(bits == right, 1.0, -1.0)
        values = np.stack([self._take(claimant.carrier, *place) for place in places])
        pressed = correct(
            torch.from_numpy(signs * aims[:, :, None]),
            torch.from_numpy(values.astype(np.float64)),
            margin=_MARGIN,
            budget=_BUDGET,
        ).numpy()
        for place, row in zip(places, pressed, strict=True):
            self._put(claimant.carrier, *place, row)
        read = np.einsum("gbw,gw->gb", signs, pressed) > 0
        return float((read == bits).mean())

    def restore(self) -> None:
        """Put the weights back as they were."""
        for tensor, element, row in reversed(self._kept):
            self._flat[tensor][element : element + len(row)] = row
        self._kept.clear()

    def _take(self, carrier: Carrier, mark: Mark, group: int) -> Values:
        where = carrier.locate(mark.blocks[group])
        row = self._flat[where.tensor][where.element : where.element + carrier.block].copy()
        self._kept.append((where.tensor, where.element, row))
        return row

    def _put(self, carrier: Carrier, mark: Mark, group: int, row: Values) -> None:
        where = carrier.locate(mark.blocks[group])
        self._flat[where.tensor][where.element : where.element + carrier.block] = row
