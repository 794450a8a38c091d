"""What is noted of a snapshot: digests, and how far the state moved.

The recorder's thread shares the interpreter's lock with training, and every call into torch takes
it from training and gives it back, which costs more than the call itself. So what a GPU does is
asked of it by training's own thread, unless that would wait for it; the recorder's thread waits
until it is done; and the many hashes are another process's.
"""

import contextlib
import queue
from dataclasses import dataclass, replace

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
class Begun:
    """What devices were asked to do for a snapshot.

    Attributes:
        memory: Where it can be hashed when they are done; None if it need not be.
        measuring: How far it moved, when they are done.
    """

    memory: Memory | None
    measuring: Measuring


@dataclass(frozen=True)
class Job:
    """A snapshot to be noted.

    Attributes:
        number: Number of the boundary.
        slot: The snapshot.
        before: The snapshot at the boundary before; None at the first.
        last: Whether nothing but the sealing follows, in which case both snapshots are kept.
        known: Its digests, where nothing need be hashed to know them.
        begun: What was begun for it already.
    """

    number: int
    slot: Slot
    before: Slot | None
    last: bool
    known: Boundary | None = None
    begun: Begun | None = None

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
    def begun(self, job: Job) -> Job:
        """A job, begun if nobody has to wait for that; only while no other is under way."""
        if job.slot.copy is None or not _is_asked(job.slot.copy):
            return job
        try:
            return replace(job, begun=self._begin(job))
        except Exception:
            # It fails on the recorder's thread again, or does not, and there it is dealt with.
            return job

    @torch.no_grad()
    def note(self, job: Job) -> None:
        """Note one snapshot."""
        copy = job.slot.copy
        assert copy is not None
        try:
            begun = job.begun or self._begin(job)
            self._settle(copy)
            if moves := begun.measuring.moves():
                self.moves[job.number - 1] = moves
        finally:
            # Before the hashes, which take longest: training may need the room meanwhile.
            self.drop(job)
        self.boundaries[job.number] = job.known or self._digests(copy.plan, begun.memory)

    def drop(self, job: Job) -> None:
        """Let go of the snapshot before a job's own, once nobody reads either."""
        if job.slot.copy:
            self._settle(job.slot.copy)
        if job.before and not job.last:
            self._free.put(job.before)

    def forget(self, number: int) -> None:
        """Forget a boundary and the segment before it."""
        self.boundaries.pop(number, None)
        self.moves.pop(number - 1, None)

    def close(self) -> None:
        """End all that hashes, and let go of all memory."""
        self._hasher.close()
        for lane in self._lanes.values():
            lane.settle()
        if self._image:
            self._image.memory.release()
        self._image = None

    def _begin(self, job: Job) -> Begun:
        """Ask devices to bring a snapshot over and to measure it, on streams of their own.

        Training does not wait for that, and they wait for the snapshot.
        """
        copy = job.slot.copy
        assert copy is not None
        with contextlib.ExitStack() as stack:
            lanes = [self._lane(device) for device in copy.memory if device.type == "cuda"]
            for lane in lanes:
                stack.enter_context(torch.cuda.stream(lane.stream))
                lane.stream.wait_event(job.slot.filled[lane.device])
            try:
                memory = None if job.known else self._brought(copy)
                return Begun(memory, Measuring(job.before.copy if job.before else None, copy))
            finally:
                for lane in lanes:
                    lane.done.record(lane.stream)

    def _lane(self, device: torch.device) -> "_Lane":
        lane = self._lanes.get(device) or _Lane(device)
        self._lanes[device] = lane
        return lane

    def _settle(self, copy: Copy) -> None:
        """Wait until all that devices were asked for is done."""
        for device in copy.memory:
            if lane := self._lanes.get(device):
                lane.settle()

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


def _is_asked(copy: Copy) -> bool:
    """Whether devices do all that is done for a copy, and whoever asks them need not wait."""
    return all(device.type == "cuda" for device in copy.memory)


class _Lane:
    """A stream of our own on a device, and what happens when all is done there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        # Who waits for it sleeps instead of spinning.
        self.done = torch.cuda.Event(blocking=True)

    def settle(self) -> None:
        """Wait until all that was begun is done."""
        self.done.synchronize()


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
