"""Answering a challenge to a forged proof, as well as can be.

A forger keeps the states that it made up, and recomputes the others from the nearest one it kept.
So every state shown has the digest that was recorded, and every batch is the right one: only
running a segment again tells a jump.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from numpy.typing import ArrayLike

from polo.evidence.replay.engine import Engine, Shard, quiet_generators
from polo.evidence.replay.samples import encode_opening
from polo.privacy import obfuscation
from polo.protocol import signing
from polo.protocol.challenge import ANSWER_FILE, Answer, Challenge, Place, Secret, sealing_file
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import write_checkpoint
from polo_lab.attacks.effort.keeping import Again
from polo_lab.attacks.effort.snapshot import Snapshot, put, taken
from polo_lab.effort.training import Enrolled


@dataclass(frozen=True)
class Kept:
    """What a forger keeps of a shard.

    Attributes:
        setting: What its computation depends on.
        steps: Its steps.
        states: States by boundary: the first, and each that no training led to.
    """

    setting: Shard
    steps: int
    states: dict[int, Again]


class Respondent:
    """Answers challenges to a forged proof.

    Args:
        who: Whose proof it is.
        engine: Runs steps.
        every: Steps per segment.
        master: What the secrets of all sealings come from.
        shards: What was kept, by shard.
        batch: Looks up the samples of a step.
    """

    def __init__(
        self,
        who: Enrolled,
        engine: Engine,
        *,
        every: int,
        master: bytes,
        shards: Mapping[int, Kept],
        batch: Callable[[ArrayLike], Mapping[str, torch.Tensor]],
    ) -> None:
        self._who = who
        self._engine = engine
        self._every = every
        self._master = master
        self._shards = shards
        self._batch = batch
        # What comes next in a challenge often lies ahead in the same shard.
        self._reached: tuple[int, int, Snapshot | None] = 0, 0, None

    def __call__(self, challenge: Challenge, out: Path) -> None:
        """Write an answer."""
        out.mkdir(parents=True)
        with quiet_generators():
            for place in challenge.segments:
                self._segment(place, out, ends=challenge.ends)
            for number in challenge.sealings:
                kept = self._shards[number]
                last = -(-kept.steps // self._every)
                self._put(out / sealing_file(number), self.state(number, last).checkpoints()[0])
        secrets = tuple(
            Secret(number, obfuscation.secret_of(self._master, number))
            for number in challenge.sealings
        )
        signed = signing.sign(Answer(challenge.digest, secrets), self._who.key)
        (out / ANSWER_FILE).write_bytes(signed.to_bytes())

    @property
    def faked(self) -> set[Place]:
        """The segments that no training led through."""
        return {
            Place(number, boundary - 1)
            for number, kept in self._shards.items()
            for boundary in kept.states
            if boundary
        }

    def state(self, number: int, boundary: int) -> Snapshot:
        """The state at a boundary of a shard: kept, or trained again from one that was."""
        kept = self._shards[number]
        nearest = max(at for at in kept.states if at <= boundary)
        shard, reached, state = self._reached
        if state is None or shard != number or not nearest <= reached <= boundary:
            reached, state = nearest, kept.states[nearest]()
        if reached < boundary:
            put(self._engine, state)
            self._engine.enter(kept.setting)
            first, stop = reached * self._every, min(boundary * self._every, kept.steps)
            order = self._engine.order
            self._engine.run(first, (self._batch(order.batch(step)) for step in range(first, stop)))
            state = taken(self._engine)
        self._reached = number, boundary, state
        return state

    def _segment(self, place: Place, out: Path, *, ends: bool) -> None:
        kept = self._shards[place.shard]
        for boundary, prefix in [(place.segment, ""), (place.segment + 1, "end-")][: 1 + ends]:
            model, rest = self.state(place.shard, boundary).checkpoints()
            self._put(out / place.file(f"{prefix}model"), model)
            if rest is not None:
                self._put(out / place.file(f"{prefix}rest"), rest)
        self._engine.enter(kept.setting)
        first = place.segment * self._every
        steps = range(first, min(first + self._every, kept.steps))
        opening = self._who.source.open(self._engine.order.distinct(steps))
        (out / place.file("samples")).write_bytes(encode_opening(opening))

    def _put(self, path: Path, checkpoint: Checkpoint) -> None:
        with path.open("wb") as file:
            write_checkpoint(checkpoint, file.write)
