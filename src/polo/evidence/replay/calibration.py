"""Comparing states across platforms: how far honest repetitions drift apart.

Another processor, another library or another number of threads rounds sums otherwise, and training
amplifies that. How much, the verifier finds out on the very segment that is compared: it runs it
again from a start that differs in the last binary digit. What is allowed is a small multiple of the
drift seen, as a share of the segment's own move, and never more than the terms allow.

Weights, buffers and every kind of the optimizer's state are compared by themselves. A made-up
momentum is as good as made-up weights, and would be lost in the sum of all.

Specification: docs/protocol.md, section 17.9.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polo.evidence.replay.shown import State
from polo.evidence.replay.state import STEP, in_units, relative
from polo.protocol.layout import CARRIER_DTYPES, Layout, Tensor
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint

REPETITIONS = 3
FACTOR = 8.0
WEIGHTS = "weights"
LEAST = 1e-6
"""Smallest allowance, as a share of the move: no platform rounds better than this."""


@dataclass(frozen=True)
class Part:
    """Tensors of a state that are compared together.

    Attributes:
        name: What to call them: `weights`, `buffers`, or a key of the optimizer's state.
        rest: Whether they are the optimizer's.
        tensors: Which tensors of the model, or of the optimizer's state.
    """

    name: str
    rest: bool
    tensors: tuple[int, ...]

    def of(self, state: State) -> Checkpoint | None:
        """Where they are in a state."""
        return state.rest if self.rest else state.model


@dataclass(frozen=True)
class Comparison:
    """How far a replayed end is from the prover's, and how far it may be.

    Attributes:
        part: The part of the state that comes off worst.
        distance: Of the prover's end from the replayed one, as a share of the move.
        allowed: Most that is allowed.
        drift: Largest distance between honest repetitions.
    """

    part: str
    distance: float
    allowed: float
    drift: float

    @property
    def close(self) -> bool:
        """Whether the prover's end is as close as honest repetitions are."""
        return self.distance <= self.allowed

    @property
    def honest(self) -> bool:
        """Whether it may be by rounding alone, whatever the terms allow."""
        return self.distance <= max(LEAST, FACTOR * self.drift)

    @property
    def share(self) -> float:
        """How much of the allowance is used."""
        if not self.distance:
            return 0.0
        return self.distance / self.allowed if self.allowed else math.inf


def parts_of(layout: Layout, rest: Layout | None, trained: Collection[str]) -> list[Part]:
    """What a state consists of, integers and the optimizer's count of steps left out.

    Args:
        layout: The model's layout.
        rest: The layout of the optimizer's state; None if it has none.
        trained: Names of the parameters that are trained.
    """
    found: dict[tuple[bool, str], list[int]] = {}
    for at, tensor in enumerate(layout.tensors):
        if tensor.dtype in CARRIER_DTYPES:
            kind = WEIGHTS if tensor.name in trained else "buffers"
            found.setdefault((False, kind), []).append(at)
    for at, tensor in enumerate(rest.tensors if rest else ()):
        if tensor.dtype in CARRIER_DTYPES and _key(tensor) != STEP:
            found.setdefault((True, _key(tensor)), []).append(at)
    return [Part(name, kind, tuple(at)) for (kind, name), at in found.items()]


def unlike(one: State, other: State, parts: Sequence[Part]) -> str:
    """The first tensor of no part that differs between two states; empty if there is none."""
    pairs = ((False, one.model, other.model), (True, one.rest, other.rest))
    for rest, mine, theirs in pairs:
        if mine is None or theirs is None:
            continue
        compared = {at for part in parts if part.rest is rest for at in part.tensors}
        for at, tensor in enumerate(mine.layout.tensors):
            if at not in compared and _whole(mine, at) != _whole(theirs, at):
                return tensor.name
    return ""


def apart(one: Checkpoint, other: Checkpoint | None, tensors: Sequence[int]) -> float:
    """Euclidean distance of two checkpoints; without the other one, the norm."""
    total = 0.0
    # Whatever a prover's weights hold: infinities come out as distances that are too large.
    with np.errstate(all="ignore"):
        for at in tensors:
            gap = _values(one, at) - (_values(other, at) if other is not None else 0.0)
            total += float(np.dot(gap, gap))
    return math.sqrt(total)


def distance(
    one: Checkpoint, other: Checkpoint, start: Checkpoint | None, tensors: Sequence[int]
) -> float:
    """How far two ends are apart, as a share of how far the first went from the start.

    What is no number is endlessly far.
    """
    gap = apart(one, other, tensors)
    if not gap:
        return 0.0
    moved = apart(one, start, tensors)
    share = gap / moved if moved else math.inf
    return math.inf if math.isnan(share) else share


def rest_move(start: State, end: State, parts: Sequence[Part]) -> int:
    """How far the optimizer's state moved, as records hold it."""
    worst = 0
    for part in parts:
        if part.rest and end.rest is not None:
            before = apart(start.rest, None, part.tensors) if start.rest is not None else 0.0
            after = apart(end.rest, None, part.tensors)
            worst = max(worst, relative(apart(end.rest, start.rest, part.tensors), before, after))
    return worst


def model_move(start: Checkpoint, end: Checkpoint, parts: Sequence[Part]) -> int:
    """How far the trained weights moved, as records hold it."""
    (trained,) = (part.tensors for part in parts if part.name == WEIGHTS)
    return in_units(apart(start, end, trained))


def calibrate(
    end: State,
    start: State,
    repeat: Callable[[int], State],
    *,
    shown: State,
    parts: Sequence[Part],
    most: float,
) -> Comparison:
    """Compare the prover's end with a replayed one; returns the part that comes off worst.

    Args:
        end: What came out here.
        start: What the segment started from.
        repeat: Runs the segment again from a start that differs in the last digit, by number.
        shown: The prover's end.
        parts: What is compared.
        most: Most that the terms allow, as a share of the move.
    """
    drifts = [0.0] * len(parts)
    for number in range(REPETITIONS):
        again = repeat(number)
        drifts = [max(old, _gap(part, end, again, start)) for old, part in _with(drifts, parts)]
    found = [
        Comparison(
            part.name, _gap(part, end, shown, start), min(most, max(LEAST, FACTOR * drift)), drift
        )
        for drift, part in _with(drifts, parts)
    ]
    return max(found, key=lambda each: (not each.honest, each.share))


def _with(drifts: Sequence[float], parts: Sequence[Part]) -> Iterator[tuple[float, Part]]:
    return zip(drifts, parts, strict=True)


def _gap(part: Part, one: State, other: State, start: State) -> float:
    mine, theirs = part.of(one), part.of(other)
    assert mine is not None
    assert theirs is not None
    return distance(mine, theirs, part.of(start), part.tensors)


class Jittered:
    """A checkpoint whose floating values differ from another's in the last binary digit."""

    def __init__(self, checkpoint: Checkpoint, number: int) -> None:
        self.layout = checkpoint.layout
        self._checkpoint = checkpoint
        self._number = number

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        spec = self.layout.tensors[tensor]
        data = self._checkpoint.read(tensor, 0, spec.size)
        if spec.dtype in CARRIER_DTYPES and _key(spec) != STEP:
            values = dtypes.to_float(data, spec.dtype)
            drawn = np.random.default_rng((self._number, tensor)).integers(-1, 2, values.shape)
            with np.errstate(all="ignore"):
                digit = np.spacing(np.abs(values)) * _DIGITS.get(spec.dtype, 1.0)
                # What is zero stays so: a mean of squares must not turn negative.
                values = values + drawn.astype(values.dtype) * np.where(values, digit, 0)
            data = dtypes.from_float(values, spec.dtype)
        return data[start:stop]


_DIGITS = {"F16": 2.0**13, "BF16": 2.0**16}
"""Last digit of a 16-bit weight, in last digits of the single precision it is read as."""


def _key(tensor: Tensor) -> str:
    return tensor.name.partition("/")[0]


def _whole(checkpoint: Checkpoint, at: int) -> bytes:
    return bytes(checkpoint.read(at, 0, checkpoint.layout.tensors[at].size))


def _values(checkpoint: Checkpoint, at: int) -> NDArray[np.float64]:
    tensor = checkpoint.layout.tensors[at]
    data = checkpoint.read(at, 0, tensor.size)
    return dtypes.to_float(data, tensor.dtype).astype(np.float64)
