"""Recording beside training: a copy of the state every so many steps, all else happens elsewhere.

Training waits for a copy within its own device. The way to the CPU and the norms of the moves are
a GPU's, on another stream, or another thread's, and the hashes of a large state another process's;
where those fall behind by more than a segment, training waits. Beyond training's own, this takes
three times the memory of model and optimizer state: on a GPU two copies there and one in pinned
memory, on a CPU three; and on a GPU, at the end of a shard, room for 2^23 numbers, or of a type
narrower than float32 all the time for twice as many in float32.
Training itself is not changed in a single bit: live tensors are read and nothing else, and no
random number is drawn.
"""

import contextlib
import queue
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from polo.errors import ChainError, TermsError
from polo.evidence.replay import platform
from polo.evidence.replay.background import Background, Beside, Stages
from polo.evidence.replay.notary import Job, Notary
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.snapshot import Slot
from polo.evidence.replay.state import in_units, named_state, norm_of
from polo.evidence.replay.watched import Watched


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
        threaded: Whether snapshots are noted by a thread in any case: where nobody passes by after
            the last step, nobody else would go on with them.

    Attributes:
        seconds: How long training had to wait, all in all.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        device: torch.device | str | None = None,
        *,
        threaded: bool = False,
    ) -> None:
        if every < 1:
            raise TermsError(f"a record every {every} steps: give 1 or more")
        self.seconds = 0.0
        self._model = model
        self._optimizer = optimizer
        self._every = every
        self._threaded = threaded
        self._followed = False
        found = next(model.parameters()).device if device is None else torch.device(device)
        self._device = found
        self._slots = [Slot() for _ in range(2 if found.type == "cuda" else 3)]
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self._notary = Notary()
        self._beside: Beside[Job] | None = None
        self._end: Callable[[], object] = lambda: None
        self._watched: Watched | None = None
        self._platform: dict[str, str] = {}
        self._forget()

    @property
    def steps(self) -> int:
        """Steps of the current shard so far."""
        return self._steps

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Record another optimizer of the same model, from the next `start` on.

        The model's tensors are then looked up once for all starts.
        """
        self._optimizer, self._followed = optimizer, True

    def start(self, known: Boundary | None = None) -> None:
        """Note the state that a shard begins with.

        Args:
            known: The digests of that state; it is then measured, and not hashed again.
        """
        with self._timed():
            self.reset()
            if self._beside is not None:
                self._beside.check()
            if self._followed and self._watched:
                self._watched.follow(self._optimizer)
            else:
                self._watched = Watched(self._model, self._optimizer, self._watched)
            self._begin(self._watched)
            self._platform = platform.describe(self._device)
            # What no record could hold is refused now, before any step is lost.
            platform.text_of(self._platform)
            self._snapshot(last=False, known=known)

    def after_step(self) -> None:
        """Count a step, and take a snapshot when a segment is full."""
        self._check()
        self._complete = False
        self._resume()
        self._pass_by()
        self._steps += 1
        if self._steps == 1:
            with self._timed():
                # Settings may have changed since a shard began, as long as no step was made.
                self._platform = platform.describe(self._device)
        if self._steps % self._every == 0:
            with self._timed():
                self._snapshot(last=False)
        self._complete = True

    def check_platform(self) -> None:
        """Refuse steps that others cannot make again: they take one setting for a whole shard."""
        if changed := platform.same(self._platform, platform.describe(self._device)):
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
            assert self._beside is not None
            self._beside.wait()
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
            assert last.copy is not None
            before, (live, _) = last.copy.trained(), named_state(model, self._optimizer)
            with torch.no_grad():
                norm = norm_of(before, {name: live[name] for name in before})
            move = in_units(0.0 if norm is None else norm.item())
        text = platform.text_of(self._platform)
        return Record(unsealed.boundaries, (*unsealed.moves, (move, 0)), text)

    def reset(self) -> None:
        """Forget the shard, and what failed in it; `start` begins anew."""
        if self._beside is not None:
            self._beside.wait()
            self._beside.failure = None
            # What an interrupt left over may still write where the next copies will lie.
            self._notary.settle()
        self._forget()

    def abandon(self) -> None:
        """Forget the shard, end the thread, and let go of all memory."""
        self._beside = self._watched = None
        self._end()
        self._slots = [Slot() for _ in self._slots]
        self._forget()

    def _forget(self) -> None:
        self._complete = False
        # A new one: whoever is left over from before must not hand out what is in use now.
        self._free = queue.SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self._notary.boundaries.clear()
        self._notary.moves.clear()
        if self._watched:
            self._watched.forget()
        self._previous: Slot | None = None
        self._tail: Slot | None = None
        self._complete = True
        self._steps = 0

    def _snapshot(self, *, last: bool, known: Boundary | None = None) -> None:
        """Copy the state, and hand the copy over."""
        assert self._beside is not None
        assert self._watched is not None
        self._complete = False
        live = self._watched.live()
        # This is where training waits if what is done beside it is more than a segment behind.
        self._beside.make_room()
        self._beside.check()
        slot = self._free.get()
        self._beside.check()
        slot.take(live)
        self._notary.expect(slot)
        number = -(-self._steps // self._every)
        self._beside.submit(Job(number, slot, self._previous, last, self._free, known))
        if last:
            self._tail = slot
        else:
            self._previous = slot
        self._complete = True

    def _begin(self, watched: Watched) -> None:
        """Have snapshots noted by another thread, unless it would do nothing but ask and wait."""
        notary, plan = self._notary, watched.live().plan
        asking = not self._threaded and notary.is_asking(plan)
        if self._beside is not None and isinstance(self._beside, Stages) == asking:
            return
        # Whom it asks ends with what was there before.
        self._beside = None
        self._end()
        if asking and notary.is_asking(plan):
            self._beside = Stages(notary.stages, notary.drop, notary.close)
        else:
            self._beside = Background(notary.note, notary.drop, notary.close)
        self._end = weakref.finalize(self, _end, self._beside)

    def _pass_by(self) -> None:
        assert self._beside is not None
        if self._beside.passes:
            with self._timed():
                self._beside.pass_by()

    def _resume(self) -> None:
        """Drop the boundary that `finish` added, if training goes on after all."""
        if self._tail is not None:
            self._notary.forget(-(-self._steps // self._every))
            self._free.put(self._tail)
            self._tail = None

    def _check(self) -> None:
        if self._beside is None or self._previous is None:
            raise ChainError("nothing is being recorded", advice="Call start() first.")
        self._beside.check()
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


def _end(beside: Beside[Job]) -> None:
    # In a forked child the threads are gone, and locks may be held for ever.
    if beside.here:
        beside.stop()
