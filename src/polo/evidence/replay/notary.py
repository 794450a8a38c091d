"""What is noted of a snapshot: digests, and how far the state moved.

Whoever does that on another thread shares the interpreter's lock with training, and every call into
torch takes it from training and gives it back. So there are few calls, and the many hashes are
another process's. Where a GPU is asked for all the rest, no other thread is needed: training's own
asks, and looks now and then whether it is done.
"""

import contextlib
import functools
import queue
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

from polo.embedding.graphs import Graphs
from polo.evidence.replay.measuring import Measuring
from polo.evidence.replay.memory import Memory
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.snapshot import Copy, Plan, Slot
from polo.evidence.replay.state import NO_STATE, joined
from polo.weights.hasher import Hasher
from polo.weights.sharing import is_shared

_LITTLE = 2**20
"""Bytes of a state that training's own thread measures without being held up."""


@dataclass(frozen=True)
class Job:
    """A snapshot to be noted.

    Attributes:
        number: Number of the boundary.
        slot: The snapshot.
        before: The snapshot at the boundary before; None at the first.
        last: Whether nothing but the sealing follows, in which case both snapshots are kept.
        free: Where slots go that are needed no more.
        known: Its digests, where nothing need be hashed to know them.
    """

    number: int
    slot: Slot
    before: Slot | None
    last: bool
    free: "queue.SimpleQueue[Slot]"
    known: Boundary | None = None

    def __str__(self) -> str:
        return f"boundary {self.number}"


class Notary:
    """Notes snapshots, one at a time.

    Args:
        threads: How many threads hash large states; by default some of the cores.

    Attributes:
        boundaries: Digests by boundary.
        moves: Moves by segment.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.boundaries: dict[int, Boundary] = {}
        self.moves: dict[int, tuple[int, int]] = {}
        self._hasher = Hasher(threads)
        self._lanes: dict[torch.device, _Lane] = {}
        self._image: _Image | None = None

    def is_asking(self, plan: Plan) -> bool:
        """Whether all that takes time is done by GPUs and by the process, which is then started."""
        here = plan.sizes.get(torch.device("cpu"), 0)
        if here > _LITTLE or here == plan.size or not is_shared(plan.size):
            return False
        self._hasher.start()
        return self._hasher.elsewhere and self._image_of(plan).memory.pinned

    def expect(self, slot: Slot) -> None:
        """Get ready for a snapshot; not on the thread that notes it, see `Hasher.start`."""
        if slot.copy and is_shared(slot.copy.plan.size):
            self._hasher.start()

    def note(self, job: Job) -> None:
        """Note one snapshot, on any thread."""
        for _ in self.stages(job, launched=False):
            pass

    def stages(self, job: Job, *, launched: bool = True) -> Generator[Callable[[], bool]]:
        """Note one snapshot; yields whenever there is something to wait for.

        Args:
            job: The snapshot.
            launched: Whether a device is asked by a single launch, of a graph that is recorded
                first. Only on training's own thread: while torch 2.11 records on one thread, it
                refuses random numbers to all others.

        Yields:
            Says whether that is over. Who goes on earlier waits.
        """
        copy = job.slot.copy
        assert copy is not None
        try:
            memory, measuring = self._begin(job, copy, launched)
            yield functools.partial(self._is_settled, copy)
            self._settle(copy)
            if moves := self._moves(measuring, copy):
                self.moves[job.number - 1] = moves
        finally:
            # Before the hashes, which take longest: training may need the room meanwhile.
            self.drop(job)
        if memory is None:
            assert job.known is not None
            self.boundaries[job.number] = job.known
            return
        question = self._hasher.ask(memory, copy.plan.table)
        yield question.is_answered
        self.boundaries[job.number] = _boundary(copy.plan, question.answer())

    def drop(self, job: Job) -> None:
        """Let go of the snapshot before a job's own, once nobody reads it."""
        try:
            if job.slot.copy:
                self._settle(job.slot.copy)
        finally:
            # Even where a device has failed: training may wait for the room.
            if job.before and not job.last:
                job.free.put(job.before)

    def forget(self, number: int) -> None:
        """Forget a boundary and the segment before it."""
        self.boundaries.pop(number, None)
        self.moves.pop(number - 1, None)

    def settle(self) -> None:
        """Wait until devices have done all that they were asked for, whoever asked."""
        for lane in self._lanes.values():
            lane.stream.synchronize()

    def close(self) -> None:
        """End all that hashes, and let go of all memory."""
        self._hasher.close()
        self._let_go()

    def _begin(self, job: Job, copy: Copy, launched: bool) -> tuple[Memory | None, Measuring]:
        """Ask devices to bring a copy to the host and to measure it, on streams of their own.

        Training does not wait for that, and they wait for the copy.

        Returns:
            Where it will be hashed; None if it need not be. And how far it moved.
        """
        for device in copy.memory:
            if device.type == "cuda" and device not in self._lanes:
                self._lanes[device] = _Lane(device)
        before = job.before.copy if job.before else None
        measuring = Measuring(before, copy, keep=job.last)
        image = None if job.known or copy.host else self._image_of(copy.plan)
        place = before.number if before else 0, copy.number, image is None

        def ask(device: torch.device) -> None:
            if image:
                image.bring(copy, device)
            measuring.ask(device)

        for device in copy.memory:
            lane = self._lanes.get(device)
            if lane is None:
                ask(device)
                continue
            with torch.cuda.stream(lane.stream):
                lane.stream.wait_event(job.slot.filled[device])
                try:
                    # A graph overwrites the snapshot before, which is kept at a shard's end.
                    if launched and not job.last:
                        lane.graphs.run(place, functools.partial(ask, device))
                    else:
                        ask(device)
                finally:
                    lane.done.record(lane.stream)
        if job.known:
            return None, measuring
        return image.memory if image else copy.host, measuring

    def _moves(self, measuring: Measuring, copy: Copy) -> tuple[int, int] | None:
        """How far a copy moved, which may have to be measured only now."""
        with contextlib.ExitStack() as streams:
            if not measuring.is_done:
                for lane in self._asked(copy):
                    streams.enter_context(torch.cuda.stream(lane.stream))
            return measuring.moves()

    def _is_settled(self, copy: Copy) -> bool:
        """Whether all that devices were asked for is done."""
        return all(lane.done.query() for lane in self._asked(copy))

    def _settle(self, copy: Copy) -> None:
        """Wait until all that devices were asked for is done."""
        for lane in self._asked(copy):
            lane.done.synchronize()

    def _asked(self, copy: Copy) -> list["_Lane"]:
        return [self._lanes[device] for device in copy.memory if device in self._lanes]

    def _image_of(self, plan: Plan) -> "_Image":
        """Where copies by a plan are brought to."""
        if self._image is None or self._image.plan is not plan:
            self._let_go()
            self._image = _Image(plan)
        return self._image

    def _let_go(self) -> None:
        """Let go of the memory that copies are brought to, once no device writes there."""
        image, self._image = self._image, None
        try:
            self.settle()
            for lane in self._lanes.values():
                lane.graphs.forget()
        finally:
            if image:
                image.memory.release()


def _boundary(plan: Plan, hashes: bytes) -> Boundary:
    """The digests of model and rest, by the hashes of their pieces."""
    model = joined(plan.model, iter([hashes[: plan.own]]))
    rest = joined(plan.rest, iter([hashes[plan.own :]])) if plan.rest else NO_STATE
    return Boundary(model, rest)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all lanes on a device: graphs of one stream share their memory."""
    return torch.cuda.Stream(device)


class _Lane:
    """A stream of our own on a device, its graphs, and what happens when all is done there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graphs = Graphs(device, beside=True)
        self.stream = _stream(device)
        # Who waits for it sleeps instead of spinning.
        self.done = torch.cuda.Event(blocking=True)


class _Image:
    """Where a copy is brought to from its devices.

    Args:
        plan: The plan of the copies.

    Attributes:
        plan: The plan.
        memory: The memory.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.memory = Memory(plan.size, pinned=True)
        self._places = {
            device: self.memory.tensor[start : start + plan.sizes[device]]
            for device, start in plan.bases.items()
        }

    def bring(self, copy: Copy, device: torch.device) -> None:
        """Begin to copy what is on a device, on its current stream."""
        self._places[device].copy_(copy.memory[device], non_blocking=True)
