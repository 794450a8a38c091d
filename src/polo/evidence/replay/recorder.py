"""Recording beside training: a copy of the state every so many steps, all else happens elsewhere.

Training waits for a copy within its own device. The way to the CPU and the norms of the moves are
another thread's, and the hashes of a large state another process's; where those fall behind by
more than a segment, training waits. Beyond training's own, this takes three times the memory of
model and optimizer state: on a GPU two copies there and one in pinned memory, on a CPU three.
Training itself is not changed in a single bit: live tensors are read and nothing else, and no
random number is drawn.
"""

import contextlib
import queue
import time
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass

import torch

from polo.errors import ChainError, TermsError, WeightsError
from polo.evidence.replay import platform
from polo.evidence.replay.background import Background
from polo.evidence.replay.notary import Job, Notary
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.snapshot import Plan, Slot
from polo.evidence.replay.state import (
    Tensors,
    in_units,
    named_rest,
    named_state,
    norm_of,
    parameter_names,
    trained_names,
)
from polo.weights.checkpoint import MemoryCheckpoint, canonical_names, checkpoint_of


@dataclass(frozen=True)
class Unsealed:
    """A record that lacks the sealing's move.

    Attributes:
        boundaries: All boundaries, the one before the sealing included.
        moves: The moves of all segments.
    """

    boundaries: tuple[Boundary, ...]
    moves: tuple[tuple[int, int], ...]


class Recorder:
    """Records the training of one shard after the other.

        recorder.start()
        for batch in batches:
            ...
            optimizer.step()
            recorder.after_step()
        recorder.finish()
        # the weights are sealed
        record = recorder.sealed(model)

    After `finish`, training may also go on: the boundary that it added is then forgotten.

    Args:
        model: The model.
        optimizer: The optimizer that trains it.
        every: How many steps a segment has.
        device: Where training happens, for the description of the platform; by default where the
            first parameter is.

    Attributes:
        seconds: How long training had to wait, all in all.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        device: torch.device | str | None = None,
    ) -> None:
        if every < 1:
            raise TermsError(f"a record every {every} steps: give 1 or more")
        self.seconds = 0.0
        self._model = model
        self._optimizer = optimizer
        self._every = every
        found = next(model.parameters()).device if device is None else torch.device(device)
        self._device = found
        self._slots = [Slot() for _ in range(2 if found.type == "cuda" else 3)]
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self._notary = Notary(self._free)
        self._background: Background[Job] | None = None
        self._end: Callable[[], object] = lambda: None
        self._live: _Live | None = None
        self._rest: Plan | None = None
        self._rest_names: list[str] = []
        self._forget()

    @property
    def steps(self) -> int:
        """Steps of the current shard so far."""
        return self._steps

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Record another optimizer of the same model, from the next `start` on."""
        self._optimizer = optimizer

    def start(self, known: Boundary | None = None) -> None:
        """Note the state that a shard begins with.

        Args:
            known: The digests of that state; it is then measured, and not hashed again.
        """
        with self._timed():
            self.reset()
            if self._background is None:
                notary = self._notary
                self._background = Background(notary.note, notary.drop, notary.close)
                self._end = weakref.finalize(self, _end, self._background)
            self._live = _Live(self._model, self._live)
            self._names = parameter_names(self._model)
            self._platform = platform.text_of(platform.describe(self._device))
            self._snapshot(last=False, known=known)

    def after_step(self) -> None:
        """Count a step, and take a snapshot when a segment is full."""
        self._check()
        self._resume()
        self._steps += 1
        if self._steps == 1:
            with self._timed():
                # Settings may have changed since a shard began, as long as no step was made.
                self._platform = platform.text_of(platform.describe(self._device))
        if self._steps % self._every == 0:
            with self._timed():
                self._snapshot(last=False)

    def check_platform(self) -> None:
        """Refuse steps that others cannot make again: they take one setting for a whole shard."""
        now = platform.describe(self._device)
        if changed := platform.same(platform.parse(self._platform, "platform"), now):
            raise ChainError(
                f"has changed within a shard, whose steps are run again in one setting: "
                f"{', '.join(changed)}",
                place="torch",
                advice="Set it before the first step of a shard and leave it. The sealed shards "
                "are safe; close() and start again on the same store.",
            )

    def wait(self) -> None:
        """Wait until all snapshots so far are noted."""
        with self._timed():
            self._check()
            assert self._background is not None
            self._background.wait()
            self._check()

    def end(self) -> None:
        """Have the state as it is now recorded, if that is within a segment."""
        with self._timed():
            self._check()
            if self._tail is None and self._steps % self._every:
                self._snapshot(last=True)

    def finish(self) -> Unsealed:
        """Wait for all that was recorded, the state as it is now included."""
        self.end()
        self.wait()
        count = len(self._notary.boundaries)
        return Unsealed(
            tuple(self._notary.boundaries[at] for at in range(count)),
            tuple(self._notary.moves[at] for at in range(count - 1)),
        )

    def sealed(self, model: torch.nn.Module) -> Record:
        """The record of the shard, whose model has been sealed since `finish`.

        Nothing is forgotten yet: if the sealing fails after all, training goes on in the shard.

        Args:
            model: The model, sealed.
        """
        unsealed = self.finish()
        with self._timed():
            last = self._tail or self._previous
            assert last is not None
            assert last.model is not None
            live, _ = named_state(model, self._optimizer)
            trained = set(last.model.plan.trained or ())
            with torch.no_grad():
                norm = norm_of(
                    *(
                        {name: value for name, value in side.items() if name in trained}
                        for side in (last.model.named(), live)
                    )
                )
            move = in_units(0.0 if norm is None else norm.item())
        return Record(unsealed.boundaries, (*unsealed.moves, (move, 0)), self._platform)

    def reset(self) -> None:
        """Forget the shard, and what failed in it; `start` begins anew."""
        if self._background is not None:
            self._background.wait()
            self._background.failure = None
        self._forget()

    def abandon(self) -> None:
        """Forget the shard, end the thread, and let go of all memory."""
        self._end()
        self._background = self._live = self._rest = None
        self._slots = [Slot() for _ in self._slots]
        self._forget()

    def _forget(self) -> None:
        while not self._free.empty():
            self._free.get()
        for slot in self._slots:
            self._free.put(slot)
        self._notary.boundaries.clear()
        self._notary.moves.clear()
        self._previous: Slot | None = None
        self._tail: Slot | None = None
        self._complete = True
        self._steps = 0

    def _snapshot(self, *, last: bool, known: Boundary | None = None) -> None:
        """Copy the state, and hand the copy over."""
        assert self._background is not None
        assert self._live is not None
        self._complete = False
        tensors = self._live.tensors()
        rest = named_rest(self._names, self._optimizer)
        # This is where training waits if the other thread is more than a segment behind.
        slot = self._free.get()
        self._background.check()
        slot.take((self._live.plan, tensors), self._planned(rest))
        self._notary.expect(slot)
        number = -(-self._steps // self._every)
        self._background.submit(Job(number, slot, self._previous, last, known))
        if last:
            self._tail = slot
        else:
            self._previous = slot
        self._complete = True

    def _planned(self, rest: Tensors) -> tuple[Plan, list[torch.Tensor]] | None:
        """The optimizer's tensors in order, and where they go; it may have gained some."""
        if not rest:
            return None
        names = sorted(rest, key=str.encode)
        tensors = [rest[name] for name in names]
        if self._rest is None or not (self._rest_names == names and self._rest.fits(tensors)):
            self._rest = Plan(MemoryCheckpoint(rest).layout, tensors)
            self._rest_names = names
        return self._rest, tensors

    def _resume(self) -> None:
        """Drop the boundary that `finish` added, if training goes on after all."""
        if self._tail is not None:
            self._notary.forget(-(-self._steps // self._every))
            self._free.put(self._tail)
            self._tail = None

    def _check(self) -> None:
        if self._background is None:
            raise ChainError("nothing is being recorded", advice="Call start() first.")
        self._background.check()
        if not self._complete:
            raise ChainError(
                "an earlier snapshot was interrupted, so the record of this shard has a gap",
                advice="Go back to the last sealed checkpoint, and start the shard again.",
            )

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


def _end(background: Background[Job]) -> None:
    # In a forked child the threads are gone, and locks may be held for ever.
    if background.here:
        background.stop()


class _Live:
    """A model's tensors, found again without walking through the model each time.

    Args:
        model: The model.
        before: What was known of it; its plan stays in use if it fits.
    """

    def __init__(self, model: torch.nn.Module, before: "_Live | None") -> None:
        checkpoint = checkpoint_of(model)
        layout = checkpoint.layout
        tensors = [checkpoint.tensor(at) for at in range(len(layout.tensors))]
        self._model = model
        self._places = _places(model, [tensor.name for tensor in layout.tensors])
        made_for = layout, tensors, trained_names(model)
        same = before is not None and before.plan.serves(*made_for)
        self.plan: Plan = before.plan if before and same else Plan(*made_for)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors as they are now, in the order of the layout.

        Raises:
            WeightsError: They are not of the kinds that they were.
        """
        if self._places is not None:
            found = [store.get(key) for store, key in self._places]
        else:
            checkpoint = checkpoint_of(self._model)
            found = [checkpoint.tensor(at) for at in range(len(checkpoint.layout.tensors))]
        present = [tensor for tensor in found if tensor is not None]
        if not self.plan.fits(present):
            raise WeightsError(
                "the model's tensors are no longer those that the shard began with",
                advice="Was a buffer or a parameter added, removed or converted?",
            )
        return present


_Place = tuple[MutableMapping[str, torch.Tensor | None], str]


def _places(model: torch.nn.Module, names: list[str]) -> list[_Place] | None:
    """Where modules keep the tensors of these names; None if some are made up on request."""
    stores: dict[int, _Place] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for key, value in store.items():
                stores.setdefault(id(value), (store, key))  # type: ignore[arg-type]
    state = model.state_dict(keep_vars=True)
    values = {short: state[name] for name, short in canonical_names(list(state)).items()}
    found = [stores.get(id(values[name])) for name in names]
    known = [place for place in found if place is not None]
    return known if len(known) == len(names) else None
