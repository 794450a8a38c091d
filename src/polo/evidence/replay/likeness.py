"""Whether the samples of a batch teach different things.

Copies that differ in a few bits are different to every hash, and a forger takes one step on each
family of them instead of one on each. What comes out is off by less than an allowance for rounding;
and where they differ by so little that the first layer's sums swallow it, what comes out is the
same to the bit. So samples are told apart by the gradients that they make: one after the other
takes the same place in a small batch. Only what goes into the model is exchanged: one pass serves
equal inputs whatever is asked of them.

Specification: docs/protocol.md, section 17.10.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from polo.evidence.replay.stepping import Batch

Slopes = Callable[[Batch], Mapping[str, torch.Tensor]]
"""The gradients that a batch makes in an untaught model."""

FEWEST = 32
"""Samples of a batch that are compared, at least; else half of them."""

MOST = 256
"""Samples that are compared, at most."""

MISSED = 1e-5
"""Chance that those compared first are all different in a batch of copies that save half."""

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

_ROUNDING = 1e-6
"""Sums that differ by less, relative to the largest, were only added in another order."""


@dataclass(frozen=True)
class Bounds:
    """What part of a batch must stand for itself.

    Attributes:
        least: The part that is asked for, over all batches that were compared.
        clear: From this part on a single batch will do.
        family: Samples of each family where half of the work is saved.
    """

    least: float
    clear: float
    family: int

    def first(self, rows: int) -> int:
        """How many samples of a batch are compared first; if all differ, the others need not be.

        Families of equal size are the hardest to notice. In a batch of such ones that save half,
        two of a family are among so many samples, all but surely.

        >>> EXACT.first(128), EXACT.first(1024), FORGIVEN.first(128)
        (32, 89, 55)
        """
        return math.ceil(math.sqrt(2 * math.log(1 / MISSED) * rows / (self.family - 1)))


EXACT: Final = Bounds(1 / 3, 1 / 2, 4)
"""To the bit, a third of the work is done for every row. Who shares the rest saves half with a
quarter as many families as rows; the bound lies above that, since the part is estimated."""

FORGIVEN: Final = Bounds(0.6, 0.75, 2)
"""Within an allowance all of the work can be shared: half is saved with half as many families."""


@dataclass(frozen=True)
class Likeness:
    """How many samples of a batch teach something of their own.

    Attributes:
        rows: Samples in the batch.
        families: Sizes of the families among those that were compared.
    """

    rows: int
    families: tuple[int, ...]

    @property
    def tried(self) -> int:
        """Samples that were compared."""
        return sum(self.families)

    @property
    def share(self) -> float:
        """Families in the whole batch, for each of its samples.

        If only some were compared, it is estimated by those that were seen once or twice: how many
        pairs there are tells how large their families are in all. Samples of which three or more
        were seen count for next to nothing there. There are at least as many families as were seen.

        >>> Likeness(7, (1, 1, 2)).share, Likeness(4, (1, 1, 2)).share
        (0.5, 0.75)
        """
        least = len(self.families) / self.rows
        sizes = Counter(self.families)
        single, pairs = sizes[1], sizes[2]
        if self.tried == self.rows or not single:
            return least
        seen = (self.tried - 1) / (self.rows - 1)
        size = 1 + 2 * pairs / single * (1 - seen) / seen
        return max(least, (single + 2 * pairs) / self.tried / size)


def nearest(tolerance: float) -> float:
    """How far apart gradients must be, relative to a sample's share, where so much is allowed.

    Who takes a family's mean for each of its members is off by the square of how far they are
    apart; twice the root of what is allowed is more than that forgives.
    """
    return min(FARTHEST, 2 * math.sqrt(max(HIDDEN, tolerance)))


def likeness(
    slopes: Slopes,
    batch: Batch,
    inputs: Sequence[str],
    *,
    tolerance: float,
    drawing: random.Random,
) -> Likeness | None:
    """Compare the samples of a batch; None if it has a single one.

    Args:
        slopes: Takes gradients at the start of the first shard.
        batch: The samples.
        inputs: The columns that go into the model.
        tolerance: Most that was forgiven, as a share of the move.
        drawing: The verifier's own randomness.
    """
    rows = len(next(iter(batch.values())))
    if rows < 2:
        return None
    tried = drawing.sample(range(rows), min(rows, max(FEWEST, rows // 2), MOST))
    compared = _Compared(slopes, batch, {name: batch[name][tried] for name in inputs}, drawing)
    first = min(len(tried), (FORGIVEN if tolerance else EXACT).first(rows))
    # A step may leave single rows of a batch out; then another place is taken.
    places = drawing.sample(range(compared.size), min(PLACES, compared.size))
    turns = (compared.at(place, nearest(tolerance), first) for place in places)
    return Likeness(rows, next((found for found in turns if found), (len(tried),)))


class _Compared:
    """Samples that take their turns in a small batch.

    Args:
        slopes: Takes gradients.
        batch: The samples of a step.
        turns: What of them takes turns.
        drawing: The verifier's own randomness.

    Attributes:
        size: Samples of the small batch.
    """

    def __init__(
        self,
        slopes: Slopes,
        batch: Batch,
        turns: Mapping[str, torch.Tensor],
        drawing: random.Random,
    ) -> None:
        self._slopes, self._turns, self._sketch = slopes, turns, _Sketch(drawing)
        rows = len(next(iter(batch.values())))
        around = drawing.sample(range(rows), min(AROUND, rows))
        self._small = {name: values[around] for name, values in batch.items()}
        try:
            self._whole = self._sketch(slopes(self._small))
        except Exception:
            # A step that takes whole batches only gets one, and each turn costs as much.
            self._small = dict(batch)
            self._whole = self._sketch(slopes(self._small))
        self.size = len(next(iter(self._small.values())))

    def at(self, place: int, near: float, first: int) -> tuple[int, ...] | None:
        """Sizes of families, told by gradients; None if nothing in this place matters at all.

        Args:
            place: The place in which they take their turns.
            near: How far apart gradients must be, relative to a sample's share.
            first: How many are compared before the others, which only are if two of them are alike.
        """
        sketches = self._sketches(place, range(first))
        widest = float((sketches - sketches[0]).abs().max())
        if widest <= _ROUNDING * float(self._whole.abs().max()):
            return None
        families = self._families(sketches, near)
        count = len(next(iter(self._turns.values())))
        if first == count or len(families) == first:
            return families
        others = self._sketches(place, range(first, count))
        return self._families(torch.cat((sketches, others)), near)

    def _families(self, sketches: torch.Tensor, near: float) -> tuple[int, ...]:
        apart = (sketches - self._whole).norm(dim=1)
        least = near * max(float(self._whole.norm()) / self.size, float(apart.median()))
        return _families(torch.cdist(sketches, sketches), least)

    def _sketches(self, place: int, rows: range) -> torch.Tensor:
        return torch.stack([self._turn(place, row) for row in rows])

    def _turn(self, place: int, row: int) -> torch.Tensor:
        turn = dict(self._small)
        for name, values in self._turns.items():
            turn[name] = turn[name].clone()
            turn[name][place] = values[row]
        return self._sketch(self._slopes(turn))


def _families(distances: torch.Tensor, least: float) -> tuple[int, ...]:
    """Sizes of families: who is near one that was chosen before belongs to it."""
    far = (distances > least).tolist()
    sizes: dict[int, int] = {}
    for at, row in enumerate(far):
        own = next((other for other in sizes if not row[other]), at)
        sizes[own] = sizes.get(own, 0) + 1
    return tuple(sizes.values())


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
        # Summed up where the gradients are: one wait for a device, not one for each tensor.
        sums: dict[torch.device, torch.Tensor] = {}
        for name, slope in self._flat(slopes):
            if name not in self._places:
                drawn = torch.randint(0, 2 * _WIDTH, slope.shape, generator=self._generator)
                self._places[name] = drawn.to(slope.device)
            if slope.device not in sums:
                sums[slope.device] = torch.zeros(
                    2 * _WIDTH, dtype=torch.float32, device=slope.device
                )
            sums[slope.device].index_add_(0, self._places[name], slope)
        nothing = torch.zeros(2 * _WIDTH, dtype=torch.float32, device="cpu")
        total = sum((each.cpu() for each in sums.values()), nothing)
        return total[:_WIDTH] - total[_WIDTH:]

    @staticmethod
    def _flat(slopes: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, slope in slopes.items():
            yield name, slope.detach().to_dense().reshape(-1).float()
