"""What the checkpoints of a chain say about how they came about, in numbers.

Every number is a heuristic. What each one is, exactly: docs/protocol.md, section 15.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from polo.evidence.progress.sample import Rows, Sample, Values

MOST_LEGS = 8
EARLY = 10
"""The first of so many parts of the shards is the early one."""

LEAST_NOISE = 2.0**-20
"""What counts as noise where less is declared, per weight and shard, relative."""

Blocks = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class ShardFigures:
    """What one shard did.

    Attributes:
        shard: Which one.
        outside: Root mean square of the moves outside the marks, relative to the weights.
        inside: The same within the shard's mark.
        noise: What the declared noise alone gives outside.
        z: Alignment with the way down of held-out loss; None where that is not known.
        loss: Held-out loss at its end; None likewise.
    """

    shard: int
    outside: float
    inside: float
    noise: float
    z: float | None
    loss: float | None


@dataclass(frozen=True)
class Findings:
    """What a whole run did.

    Attributes:
        shards: By shard, the first one first.
        moved: Energy of the moves outside the marks, over that of the noise; None if every weight
            that is looked at carries a mark.
        straight: Length of the way as the crow flies over the length of the way, less the noise:
            1 on a line; None if that cannot be told.
        legs: Parts that the run was cut into for both.
        start_loss: Held-out loss at the start; None if not known.
    """

    shards: tuple[ShardFigures, ...]
    moved: float | None
    straight: float | None
    legs: int
    start_loss: float | None

    @property
    def early_shards(self) -> int:
        """How many shards the first tenth has."""
        return -(-len(self.shards) // EARLY)

    @property
    def early(self) -> float | None:
        """The largest z that the first shards have together, out of the first tenth.

        Not that of the whole tenth: what is easy is learned in one shard, and after that updates
        point anywhere.
        """
        early = [item.z for item in self.shards[: self.early_shards]]
        scores = [combined(early[:count]) for count in range(1, len(early) + 1)]
        known = [score for score in scores if score is not None]
        return max(known) if len(known) == len(scores) else None

    @property
    def whole(self) -> float | None:
        """The z of all shards together."""
        return combined([item.z for item in self.shards])

    @property
    def fall(self) -> float | None:
        """By which part of itself held-out loss fell, from the start to its lowest."""
        losses = [item.loss for item in self.shards if item.loss is not None]
        if self.start_loss is None or self.start_loss <= 0 or len(losses) < len(self.shards):
            return None
        return 1 - min(losses) / self.start_loss


def descent(update: Values, slope: Values) -> float:
    """How many weights went against the gradient and not with it, as z.

    Signs that know nothing of the gradient are fair coins, whatever the sizes, so this is N(0, 1)
    then. It counts every weight alike: sums of products are ruled by a few large ones, which at
    high learning rates point anywhere, and by the noise.

    Args:
        update: How the weights moved.
        slope: The gradient of the loss where they came from.
    """
    agreed = np.nan_to_num(-np.sign(update) * np.sign(slope))
    count = np.count_nonzero(agreed)
    return float(agreed.sum()) / math.sqrt(count) if count else 0.0


def combined(scores: Sequence[float | None]) -> float | None:
    """One z out of several; None if one of them is not known.

    >>> combined([3.0, 4.0, 0.0, 1.0])
    4.0
    """
    known = [score for score in scores if score is not None]
    if not known or len(known) < len(scores):
        return None
    return sum(known) / math.sqrt(len(known))


@dataclass(frozen=True)
class _Leg:
    """Some successive shards.

    Attributes:
        update: How the weights moved, relative to those of the last checkpoint.
        free: Rows that no mark of these shards touched.
        noise: Mean square of the declared noise in each row, likewise relative.
    """

    update: Values
    free: Rows
    noise: Values


@dataclass(frozen=True)
class _Point:
    """One checkpoint.

    Attributes:
        values: Its weights.
        squares: For each row the mean square of its tensor.
        marked: Rows that its shard's mark touched.
        loss: Held-out loss, if known.
    """

    values: Values
    squares: Values
    marked: Rows
    loss: float | None


class Survey:
    """Takes the checkpoints of a chain, newest first, and keeps no more than a few samples.

    Args:
        sample: The weights to look at.
        noise: Mean square of each shard's declared noise, relative to a tensor's mean square.
        blocks: Tells the blocks of a shard's mark.
    """

    def __init__(self, sample: Sample, noise: Sequence[float], blocks: Blocks) -> None:
        self._sample = sample
        self._noise = noise
        self._blocks = blocks
        legs = min(len(noise), MOST_LEGS)
        self._turns = {leg * len(noise) // legs for leg in range(legs + 1)} if legs else {0}
        self._shards: list[ShardFigures] = []
        self._legs: list[_Leg] = []
        self._scale = np.ones(len(sample))
        self._newer: _Point | None = None
        self._end: Values | None = None
        self._leg_marked = np.zeros(len(sample), dtype=np.bool_)
        self._leg_noise = np.zeros(len(sample))

    @property
    def expected(self) -> int:
        """Number of the checkpoint that comes next; −1 when all have been seen."""
        return len(self._noise) - len(self._shards) - (self._newer is not None)

    def add(self, values: Values, slope: Values | None, loss: float | None) -> None:
        """Take the next older checkpoint.

        Args:
            values: Its weights, as the sample reads them.
            slope: The gradient of held-out loss at it; None if there is none.
            loss: Held-out loss at it; None likewise.
        """
        number = self.expected
        with np.errstate(all="ignore"):
            squares = self._sample.mean_squares(values)
            marked = self._sample.marked(self._blocks(number) if number else ())
            point = _Point(values, squares, marked, loss)
            if self._newer is None:
                self._scale = np.where(squares > 0, squares, 1.0)
            else:
                self._shards.append(self._shard(number + 1, point, self._newer, slope))
            if number in self._turns:
                self._turn(point)
        self._newer = point

    def findings(self) -> Findings:
        """What came out, once all checkpoints were seen."""
        assert self.expected < 0
        assert self._newer is not None
        legs = [leg for leg in self._legs if leg.free.any()]
        with np.errstate(all="ignore"):
            moved = _moved(legs)
            straight = _straight(legs) if len(legs) == len(self._legs) > 2 else None
        shards = tuple(reversed(self._shards))
        return Findings(shards, moved, straight, len(self._legs), self._newer.loss)

    def _shard(self, number: int, start: _Point, end: _Point, slope: Values | None) -> ShardFigures:
        """One shard, from the checkpoint that comes now to the one that was seen last."""
        noise = np.maximum(self._noise[number - 1] * end.squares / self._scale, LEAST_NOISE)
        self._leg_noise += noise
        self._leg_marked |= end.marked
        update = end.values - start.values
        relative = np.mean(np.square(update), axis=1) / self._scale
        # A forger may also take back the last shard's edit, and that is no training either.
        free = ~(start.marked | end.marked)
        return ShardFigures(
            number,
            _root_mean(relative[free]),
            _root_mean(relative[end.marked]),
            _root_mean(noise[free]),
            None if slope is None else descent(update[free], slope[free]),
            end.loss,
        )

    def _turn(self, point: _Point) -> None:
        """End a leg, or rather find its start, and go on to the one before it."""
        if self._end is not None:
            update = (self._end - point.values) / np.sqrt(self._scale)[:, None]
            free = ~(self._leg_marked | point.marked)
            self._legs.append(_Leg(update, free, self._leg_noise))
        self._end = point.values
        self._leg_marked = np.zeros_like(point.marked)
        self._leg_noise = np.zeros_like(self._scale)


def _root_mean(squares: Values) -> float:
    return math.sqrt(float(squares.mean())) if squares.size else 0.0


def _moved(legs: Sequence[_Leg]) -> float | None:
    if not legs:
        return None
    energy = sum(_together(leg, leg) or 0.0 for leg in legs)
    return energy / sum(float(leg.noise[leg.free].mean()) for leg in legs)


def _straight(legs: Sequence[_Leg]) -> float | None:
    """The way as the crow flies over the way gone, from inner products of all pairs of legs."""
    square, length = 0.0, 0.0
    for at, one in enumerate(legs):
        own = _together(one, one) or 0.0
        own -= float(one.noise[one.free].mean())
        square += own
        length += math.sqrt(max(own, 0.0))
        for other in legs[:at]:
            product = _together(one, other)
            if product is None:
                return None
            square += 2 * product
    return math.sqrt(max(square, 0.0)) / length if length else None


def _together(one: _Leg, other: _Leg) -> float | None:
    """Mean product of the moves of two legs; None if no weight is free in both."""
    free = one.free & other.free
    if not free.any():
        return None
    return float(np.mean(one.update[free] * other.update[free]))
