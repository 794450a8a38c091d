"""What is noted of a snapshot, on the recorder's thread: digests, and how far the state moved.

That thread shares the interpreter's lock with training, and every call into torch takes it from
training and gives it back. So there are few calls, and the many hashes are another process's.
"""

import contextlib
import queue
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from polo.evidence.replay.measuring import Measuring
from polo.evidence.replay.memory import Memory
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.snapshot import Copy, Plan, Slot
from polo.evidence.replay.state import NO_STATE, joined
from polo.weights.hasher import Hasher
from polo.weights.pieces import answer_size
from polo.weights.sharing import is_shared


@dataclass(frozen=True)
class Job:
    """A snapshot to be noted.

    Attributes:
        number: Number of the boundary.
        slot: The snapshot.
        before: The snapshot at the boundary before; None at the first.
        last: Whether nothing but the sealing follows, in which case both snapshots are kept.
        known: Its digests, where nothing need be hashed to know them.
    """

    number: int
    slot: Slot
    before: Slot | None
    last: bool
    known: Boundary | None = None

    def __str__(self) -> str:
        return f"boundary {self.number}"


class Notary:
    """Notes snapshots, one at a time.

    Args:
        free: Where slots go that are needed no more.
        threads: How many threads hash large states; by default some of the cores.

    Attributes:
        boundaries: Digests by boundary.
        moves: Moves by segment.
    """

    def __init__(self, free: "queue.SimpleQueue[Slot]", threads: int | None = None) -> None:
        self._free = free
        self.boundaries: dict[int, Boundary] = {}
        self.moves: dict[int, tuple[int, int]] = {}
        self._hasher = Hasher(threads)
        self._lanes: dict[torch.device, _Lane] = {}
        self._image: _Image | None = None

    def expect(self, slot: Slot) -> None:
        """Get ready for a snapshot; not on the thread that notes it, see `Hasher.start`."""
        if slot.copy and is_shared(slot.copy.plan.size):
            self._hasher.start()

    @torch.no_grad()
    def note(self, job: Job) -> None:
        """Note one snapshot."""
        copy = job.slot.copy
        assert copy is not None
        try:
            for event in job.slot.filled.values():
                event.synchronize()
            with self._beside(copy):
                memory = None if job.known else self._brought(copy)
                if moves := self._moves(job, copy):
                    self.moves[job.number - 1] = moves
        finally:
            # Before the hashes, which take longest: training may need the room meanwhile.
            self.drop(job)
        self.boundaries[job.number] = job.known or self._digests(copy.plan, memory)

    def drop(self, job: Job) -> None:
        """Let go of the snapshot before a job's own."""
        if job.before and not job.last:
            self._free.put(job.before)

    def forget(self, number: int) -> None:
        """Forget a boundary and the segment before it."""
        self.boundaries.pop(number, None)
        self.moves.pop(number - 1, None)

    def close(self) -> None:
        """End all that hashes, and let go of all memory."""
        self._hasher.close()
        if self._image:
            self._image.memory.release()
        self._image = None

    @contextlib.contextmanager
    def _beside(self, copy: Copy) -> Iterator[None]:
        """Work on streams of our own, so that training does not wait for it."""
        with contextlib.ExitStack() as stack:
            for device in copy.memory:
                if device.type == "cuda":
                    lane = self._lanes.get(device) or _Lane(device)
                    self._lanes[device] = lane
                    stack.enter_context(torch.cuda.stream(lane.stream))
            yield

    def _settle(self, copy: Copy) -> None:
        """Wait until what was begun on streams of our own is done."""
        for device in copy.memory:
            if device.type == "cuda":
                self._lanes[device].settle()

    def _moves(self, job: Job, copy: Copy) -> tuple[int, int] | None:
        """How far the state moved, once all that was begun is done, this or the way to the CPU."""
        try:
            measuring = Measuring(job.before.copy if job.before else None, copy)
        finally:
            self._settle(copy)
        return measuring.moves()

    def _brought(self, copy: Copy) -> Memory:
        """The memory of a copy where it can be hashed; from a CUDA device, soon to be there."""
        if copy.host:
            return copy.host
        image = self._image
        if image is None or image.plan is not copy.plan:
            if image:
                image.memory.release()
            image = self._image = _Image(copy.plan)
        image.bring(copy)
        return image.memory

    def _digests(self, plan: Plan, memory: Memory | None) -> Boundary:
        """The digests of model and rest, by one question to whoever hashes."""
        assert memory is not None
        own, others = plan.tables
        hashes = self._hasher.hashes(memory, own + others)
        size = answer_size(own)
        model = joined(plan.model, iter([hashes[:size]]))
        return Boundary(model, joined(plan.rest, iter([hashes[size:]])) if plan.rest else NO_STATE)


class _Lane:
    """A stream of our own, and how to wait for it."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        # Who waits for it sleeps instead of spinning.
        self._done = torch.cuda.Event(blocking=True)

    def settle(self) -> None:
        """Wait until all that was begun is done."""
        self._done.record(self.stream)
        self._done.synchronize()


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

    def bring(self, copy: Copy) -> None:
        """Begin to copy, each device on its current stream."""
        for device, memory in copy.memory.items():
            self._places[device].copy_(memory, non_blocking=True)
