"""Reading an answer: states and samples that a prover shows, bound to what was committed before.

An answer is hostile. Its files have names and sizes that follow from the challenge and the terms,
headers are compared and not parsed, and each file is read once: what is hashed is what is used.

Specification: docs/protocol.md, section 17.7.
"""

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from polo.errors import FormatError, LimitError, PoloError, StoreError
from polo.evidence.replay.order import Order
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.rooms import Rooms
from polo.evidence.replay.samples import (
    SampleOpening,
    check_opening,
    load_opening,
    tensors,
)
from polo.evidence.replay.state import NO_STATE, digest_of
from polo.protocol.challenge import (
    ANSWER_FILE,
    Answer,
    Challenge,
    Place,
    sealed_file,
    sealing_file,
)
from polo.protocol.effort import Column
from polo.protocol.layout import Layout
from polo.storage.answers import names_of
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint
from polo.weights.files import FileCheckpoint, open_plain
from polo.weights.hashing import commit

MAX_ANSWER_FILE = 4 * 2**20


@dataclass(frozen=True)
class State:
    """A training state that was shown: weights, and the optimizer's tensors if it has any."""

    model: Checkpoint
    rest: Checkpoint | None

    @classmethod
    def copy_of(cls, state: "State") -> "State":
        """A copy of a state that may change."""
        rest = None if state.rest is None else HeldCheckpoint.copy_of(state.rest)
        return cls(HeldCheckpoint.copy_of(state.model), rest)


@dataclass(frozen=True)
class Samples:
    """The samples of one segment."""

    opening: SampleOpening
    batches: tuple[np.ndarray[tuple[int], np.dtype[np.intp]], ...]

    def tensors(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """The batches, one after the other."""
        rows = self.opening.rows
        for places in self.batches:
            yield tensors({name: values[places] for name, values in rows.items()})

    def largest(self) -> Mapping[str, torch.Tensor]:
        """The batch with most samples, the first of them."""
        places = max(self.batches, key=len)
        return tensors({name: values[places] for name, values in self.opening.rows.items()})

    def blank(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Batches of the same size, all zeros."""
        for batch in self.tensors():
            yield {name: torch.zeros_like(values) for name, values in batch.items()}

    def exchanged(self, draw: random.Random) -> Mapping[str, torch.Tensor] | None:
        """The first batch with one sample in the place of another; None if all are alike."""
        places, contents = self.batches[0].copy(), list(self.opening.contents.values())
        at = draw.randrange(len(places))
        others = [row for row, found in enumerate(contents) if found != contents[places[at]]]
        if not others:
            return None
        places[at] = draw.choice(others)
        return tensors({name: values[places] for name, values in self.opening.rows.items()})


class Shown:
    """The folder of an answer.

    Args:
        folder: The folder.
        challenge: The challenge that it answers.
        layout: The model's layout.
        rest: The layout of the optimizer's state after at least one step; None if it has none.
        rooms: Where states are read to.
    """

    def __init__(
        self,
        folder: Path,
        challenge: Challenge,
        layout: Layout,
        rest: Layout | None,
        rooms: Rooms | None = None,
    ) -> None:
        self._folder = folder
        self._rooms = rooms or Rooms()
        self._challenge = challenge
        self._layout = layout
        self._rest = rest

    def record(self) -> Answer:
        """The signed part of the answer; its signature is not checked here.

        Raises:
            FormatError: It is not what it must be, or beside it lies what belongs to no answer.
        """
        with open_plain(self._folder / ANSWER_FILE) as file:
            data = file.read(MAX_ANSWER_FILE + 1)
        if len(data) > MAX_ANSWER_FILE:
            raise LimitError(f"more than {MAX_ANSWER_FILE} bytes", place=ANSWER_FILE)
        answer = Answer.from_bytes(data, ANSWER_FILE)
        if answer.challenge != self._challenge.digest:
            raise FormatError("it answers another challenge", place=ANSWER_FILE)
        # Last, since all files of an answer to another challenge are strange ones.
        self._check_names()
        return answer

    def _check_names(self) -> None:
        known = set(names_of(self._challenge))
        try:
            with os.scandir(self._folder) as entries:
                strange = next((entry.name for entry in entries if entry.name not in known), "")
        except OSError as error:
            raise StoreError(
                f"cannot be read: {error.strerror}", place=str(self._folder)
            ) from error
        if strange:
            detail = "belongs to no answer to this challenge"
            raise FormatError(detail, place=strange[:200], advice="Remove it.")

    def start(self, place: Place, recorded: Boundary) -> State:
        """The state that a segment starts from."""
        untouched = place == Place(1, 0)
        return self._state(place, "", recorded, None if untouched else self._rest)

    def end(self, place: Place, recorded: Boundary) -> State:
        """The state that a segment ends with."""
        return self._state(place, "end-", recorded, self._rest)

    def model(self, place: Place, recorded: Boundary) -> HeldCheckpoint:
        """The weights that a segment starts from."""
        return self._bound(place.file("model"), self._layout, recorded.model)

    def sealing(self, shard: int, recorded: Boundary) -> HeldCheckpoint:
        """The weights before the sealing of a shard."""
        return self._bound(sealing_file(shard), self._layout, recorded.model)

    def sealed(self, shard: int, root: bytes) -> HeldCheckpoint:
        """W_x of a shard that is the newest, whose root is the one that was committed to."""
        return self._rooted(sealed_file(shard), root)

    def first(self, shard: int, root: bytes) -> HeldCheckpoint:
        """W_{x-1}, which the first segment of shard x starts from; with that root."""
        return self._rooted(Place(shard, 0).file("model"), root)

    def samples(
        self, place: Place, order: Order, steps: range, columns: tuple[Column, ...], root: bytes
    ) -> Samples:
        """The samples of a segment, in the order that the nonce fixes."""
        name = place.file("samples")
        indices = order.distinct(steps)
        opening = load_opening(
            self._file(name), columns, indices, samples=order.samples, place=name
        )
        check_opening(opening, indices, root, order.samples, columns, place=name)
        batches = tuple(np.searchsorted(indices, order.batch(step)) for step in steps)
        return Samples(opening, batches)

    def _state(self, place: Place, prefix: str, recorded: Boundary, rest: Layout | None) -> State:
        model = self._bound(place.file(f"{prefix}model"), self._layout, recorded.model)
        name = place.file(f"{prefix}rest")
        if rest is None:
            if recorded.rest != NO_STATE:
                raise FormatError("the record has a state that this optimizer lacks", place=name)
            return State(model, None)
        return State(model, self._bound(name, rest, recorded.rest))

    def _rooted(self, name: str, root: bytes) -> HeldCheckpoint:
        """A checkpoint with the root that was committed to."""
        held = self._held(name, self._layout)
        try:
            found = commit(held).root
        except PoloError as error:
            raise FormatError(error.message, place=name) from error
        if found != root:
            raise FormatError("its root is not the one that was committed to", place=name)
        return held

    def _held(self, name: str, layout: Layout) -> HeldCheckpoint:
        """A checkpoint in memory, so that what is hashed is what is used."""
        try:
            with FileCheckpoint.canonical(self._file(name), layout) as file:
                return file.held(self._rooms.room)
        except (FormatError, StoreError) as error:
            # Where the verifier keeps the answer is nobody's concern.
            raise type(error)(error.message, place=name) from error

    def _bound(self, name: str, layout: Layout, digest: bytes) -> HeldCheckpoint:
        """A file whose digest is the recorded one."""
        held = self._held(name, layout)
        # One thread: several files are read at a time.
        if digest_of(held, threads=1) != digest:
            raise FormatError("is not the state that was recorded", place=name)
        if endless := held.not_finite():
            # From there on every step is known without taking it.
            detail = f"holds numbers that are not finite: {endless[:200]}"
            raise FormatError(detail, place=name)
        return held

    def _file(self, name: str) -> Path:
        path = self._folder / name
        if not os.path.lexists(path):
            raise StoreError("was asked for and is not shown", place=name)
        return path
