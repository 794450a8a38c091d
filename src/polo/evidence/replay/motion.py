"""How far a shard went, against how far its record says it went.

The moves of a record are what the prover says. Two bounds hold them to the stored checkpoints: the
way from W_{x-1} to W_x is no longer than the recorded moves together, and a sealing moves the
weights as far as finishing step and noise do, not farther.

Specification: docs/protocol.md, section 17.5.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.checks import Check, Status
from polo.evidence.replay.state import MOVE_ONE
from polo.evidence.replay.timeline import LEVEL, Timeline
from polo.privacy import obfuscation
from polo.protocol.carrier import Carrier
from polo.protocol.challenge import Place
from polo.protocol.detection import MILLION
from polo.watermark.mark import derive
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint

_ROUNDING = 1e-3
_LAST = 1e-6
_SPREAD = 0.02
_DEVIATIONS, _TAIL = 6.0, 40.0
"""How far a sum of squares strays: so many standard deviations; for few numbers so many σ²."""

_STRIP = 2**16
"""Weights that are compared at a time: so few that the differences need no fresh memory."""

Values = dict[int, NDArray[np.floating[Any]]]


class Motion:
    """Sees the checkpoints of a chain, newest first, and holds one of them in memory."""

    def __init__(self, timeline: Timeline, carrier: Carrier, trained: Collection[str]) -> None:
        self._timeline = timeline
        self._carrier = carrier
        names = [tensor.name for tensor in carrier.layout.tensors]
        self._tensors = [at for at, name in enumerate(names) if name in trained]
        self._newer: tuple[int, Values] | None = None
        self._around: tuple[int, Values, Values] | None = None

    def see(self, number: int, checkpoint: Checkpoint, seed: bytes | None) -> Iterator[Check]:
        """Compare a checkpoint with the one before, and with the record of its sealing.

        Args:
            number: The shard that the checkpoint ended.
            checkpoint: The checkpoint.
            seed: The seed of the shard's mark; None where it is not known.
        """
        values = {at: self._values(checkpoint, at) for at in self._tensors}
        self._around = None
        if self._newer is not None and self._newer[0] == number + 1:
            record, newer = self._timeline.records[number + 1], self._newer[1]
            self._around = number + 1, values, newer
            went = self._apart(values, newer)
            said = sum(model for model, _ in record.moves) / MOVE_ONE
            # Moves are rounded to units; the comparison is false for what is no number, too.
            if not went <= said * (1 + _ROUNDING) + len(record.moves) / MOVE_ONE:
                detail = f"the weights went {went:.4g} far; its recorded moves add up to {said:.4g}"
                yield Check("record", Status.FAILED, detail, shard=number + 1, level=LEVEL)
        if seed is not None and (own := self._timeline.records.get(number)):
            least, most = self._sealing(number, values, seed)
            said = own.moves[-1][0] / MOVE_ONE
            if not least <= said <= most:
                detail = f"its sealing moved the weights by {said:.4g}, it says; finishing step "
                detail += f"and noise move them by {least:.4g} to {most:.4g}"
                yield Check("record", Status.FAILED, detail, shard=number, level=LEVEL)
        self._newer = number, values

    def astray(self, shard: int) -> Callable[[Place, Checkpoint], str]:
        """What tells why a segment of a shard cannot start from some weights.

        They are no farther from the checkpoint before than the moves up to there, nor from the one
        after than the moves that follow: a path that leaves for where steps are cheap, and comes
        back, would have to own up to both ways.

        Args:
            shard: The shard between the two checkpoints seen last; of others nothing is told.

        Returns:
            A function of a segment and the weights that it starts from; it may be called on another
            thread, and later. It says nothing where they can be.
        """
        if self._around is None or self._around[0] != shard:
            return lambda _place, _start: ""
        _, older, newer = self._around
        moves = [model for model, _ in self._timeline.records[shard].moves]

        def tell(place: Place, start: Checkpoint) -> str:
            values = {at: self._values(start, at) for at in self._tensors}
            for name, checkpoint, allowed in (
                ("before", older, sum(moves[: place.segment])),
                ("after", newer, sum(moves[place.segment :])),
            ):
                went = self._apart(values, checkpoint)
                said = allowed / MOVE_ONE
                if not went <= said * (1 + _ROUNDING) + len(moves) / MOVE_ONE + _LAST * went:
                    return (
                        f"it starts {went:.4g} away from the checkpoint {name} its shard; the "
                        f"moves between add up to {said:.4g}"
                    )
            return ""

        return tell

    def _sealing(self, number: int, values: Values, seed: bytes) -> tuple[float, float]:
        """Least and most that a sealing can have moved the weights, judged by what came out."""
        terms = self._timeline.manifest.terms
        sigma = self._timeline.manifest.shards[number - 1].noise.sigma
        share = (terms.noise.fraction * 256 // MILLION) / 256
        marked = self._marked(values, seed)
        energy = variance = tail = 0.0
        for at, flat in values.items():
            count = len(flat) - sum(len(part) for part in marked.get(at, ()))
            scale = obfuscation.scale_of(flat, sigma)
            square = scale * scale
            energy += share * count * square
            own = (3 * share - share**2) * count
            variance += own * square * square
            if own:
                tail = max(tail, square * (_TAIL - _DEVIATIONS * math.sqrt(own)))
        spread = _SPREAD * energy + _DEVIATIONS * math.sqrt(variance) + tail
        budget = terms.finish.budget / MILLION
        norm = _norm(part for parts in marked.values() for part in parts)
        edit = norm * budget / max(1 - budget, 1e-6)
        return math.sqrt(max(0.0, energy - spread)), math.sqrt(energy + spread + edit**2)

    def _marked(self, values: Values, seed: bytes) -> dict[int, list[NDArray[np.floating[Any]]]]:
        """The weights that carry a mark, by tensor."""
        blocks = derive(self._timeline.manifest.terms, self._carrier, seed).blocks
        size, found = self._carrier.block, dict[int, list[NDArray[np.floating[Any]]]]()
        for block in blocks:
            at = self._carrier.locate(block)
            part = values[at.tensor][at.element : at.element + size]
            found.setdefault(at.tensor, []).append(part)
        return found

    def _apart(self, one: Values, other: Values) -> float:
        """How far apart the weights of two checkpoints are."""
        return _norm(
            one[at][start : start + _STRIP] - other[at][start : start + _STRIP]
            for at in self._tensors
            for start in range(0, len(one[at]), _STRIP)
        )

    def _values(self, checkpoint: Checkpoint, at: int) -> NDArray[np.floating[Any]]:
        tensor = checkpoint.layout.tensors[at]
        if tensor.dtype == "F32":
            return np.frombuffer(checkpoint.read(at, 0, tensor.size), dtype="<f4")
        return dtypes.to_float(checkpoint.read(at, 0, tensor.size), tensor.dtype)


def _norm(parts: Iterable[NDArray[np.floating[Any]]]) -> float:
    return math.sqrt(sum(float(np.dot(part, part)) for part in parts))
