"""A thief's alibi: a record of training that never happened, and the answer that goes with it.

Between two checkpoints lie as many states as training would have led through, on a straight line;
each is a real one, with its true digest, and can be shown. Only no step leads from one to the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from polo.evidence.replay import platform
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary, Record, span_of
from polo.evidence.replay.samples import encode_opening
from polo.evidence.replay.state import SATURATED, digest_of, moves, rest_layout, trained_names
from polo.evidence.replay.timeline import LEVEL
from polo.keys import Identity
from polo.privacy import obfuscation
from polo.protocol import signing
from polo.protocol.challenge import ANSWER_FILE, Answer, Challenge, Place, Secret, sealing_file
from polo.protocol.records import Terms
from polo.storage import atomic
from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint
from polo.weights.dtypes import torch_dtype
from polo.weights.files import write_checkpoint

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class _Way:
    """What a shard is said to have gone through.

    Attributes:
        seed: The shard's seed.
        start: The weights that it started from.
        end: Those before its sealing.
    """

    seed: bytes
    start: Tensors
    end: Tensors


class Alibi:
    """What a thief says it trained.

    Args:
        terms: Terms that ask for level replay.
        model: A model of the task, as it starts.
    """

    def __init__(self, terms: Terms, model: torch.nn.Module) -> None:
        asked = next(item for item in terms.evidence if item.level == LEVEL)
        self._recipe = Recipe.from_settings(asked.settings, "terms")
        self._steps = terms.shards.fewest_steps
        self._segments = self._recipe.segments(self._steps)
        self._rest = rest_layout(model, self._recipe.optimizer(model))
        self._trained = trained_names(model)
        self._now: Tensors = copied(model)
        self._ways: list[_Way] = []

    def shard(self, seed: bytes, end: Tensors, sealed: Tensors) -> Record:
        """The record of one more shard.

        Args:
            seed: Its seed.
            end: The weights before its sealing.
            sealed: And after it.
        """
        self._ways.append(_Way(seed, self._now, end))
        number, count = len(self._ways), self._segments
        boundaries = tuple(
            Boundary(digest_of(self._model(number, at)), digest_of(self._optimizer(number, at)))
            for at in range(count + 1)
        )
        pace = self._move(self._now, end) // count
        first = (pace, SATURATED if number == 1 else 0)
        claims = (first, *((pace, 0) for _ in range(count - 1)), (self._move(end, sealed), 0))
        self._now = sealed
        return Record(boundaries, claims, platform.text_of(platform.describe("cpu")))

    def answer(
        self, challenge: Challenge, out: Path, *, data: DataSource, key: Identity, master: bytes
    ) -> Path:
        """Everything that was drawn, shown as a prover who did train would show it.

        Args:
            challenge: What was drawn.
            out: The folder to write.
            data: The data, which the thief has, too.
            key: The thief's key.
            master: The secret of its obfuscation.
        """
        out.mkdir()
        for place in challenge.segments:
            _put(out / place.file("model"), self._model(place.shard, place.segment))
            if (rest := self._optimizer(place.shard, place.segment)) is not None:
                _put(out / place.file("rest"), rest)
            opening = data.open(self._order(place).distinct(self._span(place)))
            atomic.write(out / place.file("samples"), encode_opening(opening))
        for shard in challenge.sealings:
            _put(out / sealing_file(shard), self._model(shard, self._segments))
        secrets = (Secret(x, obfuscation.secret_of(master, x)) for x in challenge.sealings)
        signed = signing.sign(Answer(challenge.digest, tuple(secrets)), key)
        atomic.write(out / ANSWER_FILE, signed.to_bytes())
        return out

    def _model(self, shard: int, boundary: int) -> Checkpoint:
        """The weights at a boundary: so far on the way from the shard's start to its end."""
        way, share = self._ways[shard - 1], boundary / self._segments
        return MemoryCheckpoint(
            {
                name: way.start[name].lerp(value, share) if value.is_floating_point() else value
                for name, value in way.end.items()
            }
            if boundary
            else way.start
        )

    def _optimizer(self, shard: int, boundary: int) -> Checkpoint | None:
        """An optimizer that remembers nothing, but has the form of one that does."""
        if self._rest is None or (shard, boundary) == (1, 0):
            return None
        return MemoryCheckpoint(
            {t.name: torch.zeros(t.shape, dtype=torch_dtype(t.dtype)) for t in self._rest.tensors}
        )

    def _move(self, before: Tensors, after: Tensors) -> int:
        there, here = ({name: side[name] for name in self._trained} for side in (before, after))
        return moves((there, {}), (here, {}))[0]

    def _order(self, place: Place) -> Order:
        seed = self._ways[place.shard - 1].seed
        return Order(seed, self._recipe.samples, self._recipe.batch)

    def _span(self, place: Place) -> range:
        first, count = span_of(place.segment, self._steps, self._recipe.every)
        return range(first, first + count)


def copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's tensors by name, which later edits leave alone."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _put(path: Path, checkpoint: Checkpoint) -> None:
    with atomic.replacing(path, mode=0o600) as file:
        write_checkpoint(checkpoint, file.write)
