"""Whether the samples of a batch teach different things.

Copies that differ in a few bits are different to every hash, and a forger takes one step on each
family of them instead of one on each. What comes out is off by less than an allowance for rounding;
and where they differ by so little that the first layer's sums swallow it, what comes out is the
same to the bit. So samples are told apart by the gradients that they make: one after the other
takes the same place in a small batch. It is done column by column, since one pass serves equal
inputs whatever their labels are.

Specification: docs/protocol.md, section 17.10.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from polo.evidence.replay.engine import Engine

MOST = 256
"""Samples of a batch that are compared, at most."""

FEWER = 32
"""The same where nothing is forgiven: copies that save anything are then nearly all of a batch."""

LEAST = 0.75
"""Least part of the samples that must stand for themselves."""

AROUND = 16
"""Samples of the small batch in which they take their turns."""

PLACES = 8
"""Places of the small batch that are tried until something in one of them matters."""

FARTHEST = 0.5
"""No two samples count as alike whose gradients are farther apart, whatever is allowed."""

HIDDEN = 1e-4
"""Samples count as alike as if so much were allowed, where less or nothing is."""

_WIDTH = 4096
"""Numbers that a gradient is summed up in; distances are kept within a few percent."""


@dataclass(frozen=True)
class Likeness:
    """How many samples of a batch teach different things.

    Attributes:
        column: The column in which they differ most.
        tried: Samples that were compared.
        different: How many of them stand for themselves.
    """

    column: str
    tried: int
    different: int

    @property
    def share(self) -> float:
        """Part of the samples that stand for themselves."""
        return self.different / self.tried


def nearest(tolerance: float) -> float:
    """How far apart gradients must be, relative to a sample's share, where so much is allowed.

    Who takes a family's mean for each of its members is off by the square of how far they are
    apart; twice the root of what is allowed is more than that forgives.
    """
    return min(FARTHEST, 2 * math.sqrt(max(HIDDEN, tolerance)))


def likeness(
    engine: Engine,
    batch: Mapping[str, torch.Tensor],
    *,
    tolerance: float,
    drawing: random.Random,
) -> Likeness | None:
    """Compare the samples of a batch; None if it has a single one.

    Args:
        engine: An engine at the start of the first shard.
        batch: The samples.
        tolerance: Most that the terms allow, as a share of the move.
        drawing: The verifier's own randomness.
    """
    rows = len(next(iter(batch.values())))
    if rows < 2:
        return None
    around = drawing.sample(range(rows), min(AROUND, rows))
    tried = drawing.sample(range(rows), min(MOST if tolerance else FEWER, rows))
    small = {name: values[around] for name, values in batch.items()}
    compared = _Compared(engine, small, batch, tried, nearest(tolerance), _Sketch(drawing))
    # A step may leave single rows of a batch out; then another place is taken.
    places = drawing.sample(range(len(around)), min(PLACES, len(around)))
    turns = (compared.at(place) for place in places)
    return next((found for found in turns if found), Likeness(sorted(batch)[0], len(tried), 1))


class _Compared:
    """Samples that take their turns in a small batch.

    Args:
        engine: The engine.
        small: The small batch.
        batch: The samples.
        tried: Which of them are compared.
        near: How far apart their gradients must be.
        sketch: Sums gradients up.
    """

    def __init__(
        self,
        engine: Engine,
        small: Mapping[str, torch.Tensor],
        batch: Mapping[str, torch.Tensor],
        tried: Sequence[int],
        near: float,
        sketch: "_Sketch",
    ) -> None:
        self._engine, self._small, self._batch = engine, small, batch
        self._tried, self._near, self._sketch = tried, near, sketch
        self._whole = sketch(engine.slopes(0, small))

    def at(self, place: int) -> Likeness | None:
        """The column in which they differ most; None if nothing in this place matters at all."""
        found: list[Likeness] = []
        # The largest first: it is the inputs that differ most, and one column will do.
        for name in sorted(self._batch, key=lambda name: -self._batch[name].numel()):
            sketches = self._sketches(name, place)
            if not bool((sketches != sketches[0]).any()):
                continue
            apart = (sketches - self._whole).norm(dim=1)
            share = float(self._whole.norm()) / len(self._small[name])
            least = self._near * max(share, float(apart.median()))
            own = _families(torch.cdist(sketches, sketches), least)
            found.append(Likeness(name, len(self._tried), own))
            if found[-1].share >= LEAST:
                break
        return max(found, key=lambda each: each.different) if found else None

    def _sketches(self, name: str, place: int) -> torch.Tensor:
        values = self._batch[name]
        turns = (_with(self._small, name, place, values[row]) for row in self._tried)
        return torch.stack([self._sketch(self._engine.slopes(0, turn)) for turn in turns])


def _with(
    small: Mapping[str, torch.Tensor], name: str, place: int, value: torch.Tensor
) -> dict[str, torch.Tensor]:
    """A batch one of whose samples has another value in a column."""
    changed = small[name].clone()
    changed[place] = value
    return {**small, name: changed}


def _families(distances: torch.Tensor, least: float) -> int:
    """How many can be chosen, one by one, none of which is near one chosen before."""
    far = (distances > least).tolist()
    chosen: list[int] = []
    for at, row in enumerate(far):
        if all(row[other] for other in chosen):
            chosen.append(at)
    return len(chosen)


class _Sketch:
    """Sums gradients up in few numbers, by signs and places that nobody knows beforehand.

    Args:
        drawing: The verifier's own randomness.
    """

    def __init__(self, drawing: random.Random) -> None:
        self._generator = torch.Generator().manual_seed(drawing.getrandbits(63))
        self._places: dict[str, torch.Tensor] = {}

    def __call__(self, slopes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The few numbers, in main memory."""
        total = torch.zeros(_WIDTH)
        for name, slope in self._flat(slopes):
            if name not in self._places:
                drawn = torch.randint(0, 2 * _WIDTH, slope.shape, generator=self._generator)
                self._places[name] = drawn.to(slope.device)
            sums = torch.zeros(2 * _WIDTH, device=slope.device)
            sums.index_add_(0, self._places[name], slope)
            total += (sums[:_WIDTH] - sums[_WIDTH:]).cpu()
        return total

    @staticmethod
    def _flat(slopes: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, slope in slopes.items():
            yield name, slope.detach().reshape(-1).float()
