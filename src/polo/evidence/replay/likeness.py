"""Whether the samples of a batch teach different things.

Copies that differ in a few bits are different to every hash, and a forger takes one step on each
family of them instead of one on each. What comes out is off by less than an allowance for rounding.
So where there is such an allowance, samples are told apart by the gradients that they make: one
after the other takes the same place in a small batch. It is done column by column, since one pass
serves equal inputs whatever their labels are.

Specification: docs/protocol.md, section 17.10.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from polo.evidence.replay.engine import Engine

MOST = 256
"""Samples of a batch that are compared, at most."""

LEAST = 0.75
"""Least part of the samples that must stand for themselves."""

AROUND = 16
"""Samples of the small batch in which they take their turns."""

FARTHEST = 0.5
"""No two samples count as alike whose gradients are farther apart, whatever is allowed."""

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
    return min(FARTHEST, 2 * math.sqrt(tolerance))


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
    tried = drawing.sample(range(rows), min(MOST, rows))
    small = {name: values[around] for name, values in batch.items()}
    sketch = _Sketch(drawing)
    whole = sketch(engine.slopes(0, small))
    found = []
    for name, values in batch.items():
        turns = (_with(small, name, values[row]) for row in tried)
        sketches = torch.stack([sketch(engine.slopes(0, turn)) for turn in turns])
        apart = (sketches - whole).norm(dim=1)
        least = nearest(tolerance) * max(float(whole.norm()) / len(around), float(apart.median()))
        found.append(Likeness(name, len(tried), _families(torch.cdist(sketches, sketches), least)))
        if found[-1].share >= LEAST:
            break
    return max(found, key=lambda each: each.different)


def _with(
    small: Mapping[str, torch.Tensor], name: str, value: torch.Tensor
) -> dict[str, torch.Tensor]:
    """A batch whose first sample has another value in a column."""
    changed = small[name].clone()
    changed[0] = value
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
