"""What is noted of a snapshot, on the recorder's thread: digests, and how far the state moved."""

import contextlib
import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

import torch

from polo.evidence.replay.record import Boundary
from polo.evidence.replay.snapshot import Copy, Plan, Slot
from polo.evidence.replay.state import NO_STATE, PIECE_BYTES, joined, moves


@dataclass(frozen=True)
class Job:
    """A snapshot to be noted.

    Attributes:
        number: Number of the boundary.
        slot: The snapshot.
        before: The snapshot at the boundary before; None at the first.
        last: Whether nothing but the sealing follows, in which case both snapshots are kept.
    """

    number: int
    slot: Slot
    before: Slot | None
    last: bool

    def __str__(self) -> str:
        return f"boundary {self.number}"


class Notary:
    """Notes snapshots, one at a time.

    Args:
        free: Where slots go that are needed no more.
        threads: How many threads hash large states; by default two where there are cores to spare.

    Attributes:
        boundaries: Digests by boundary.
        moves: Moves by segment.
    """

    def __init__(self, free: "queue.SimpleQueue[Slot]", threads: int | None = None) -> None:
        self._free = free
        self.boundaries: dict[int, Boundary] = {}
        self.moves: dict[int, tuple[int, int]] = {}
        # Training needs the cores, too, and the interpreter's lock.
        self._threads = threads or (2 if (os.cpu_count() or 1) >= 8 else 1)
        self._pool: ThreadPoolExecutor | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._images: dict[tuple[str, torch.device], torch.Tensor] = {}

    @torch.no_grad()
    def note(self, job: Job) -> None:
        """Note one snapshot."""
        slot = job.slot
        assert slot.model is not None
        try:
            if slot.filled:
                slot.filled.synchronize()
            with self._beside(slot.model):
                images = [self._brought("model", slot.model), self._brought("rest", slot.rest)]
                if job.before:
                    self.moves[job.number - 1] = _moved(job.before, slot)
                self._settle(slot.model)
        finally:
            # Before the hashes, which take longest: training may need the room meanwhile.
            self.drop(job)
        model, rest = (
            self._digest(copy.plan, memory) if copy else NO_STATE
            for copy, memory in zip((slot.model, slot.rest), images, strict=True)
        )
        self.boundaries[job.number] = Boundary(model, rest)

    def drop(self, job: Job) -> None:
        """Let go of the snapshot before a job's own."""
        if job.before and not job.last:
            self._free.put(job.before)

    def forget(self, number: int) -> None:
        """Forget a boundary and the segment before it."""
        self.boundaries.pop(number, None)
        self.moves.pop(number - 1, None)

    def close(self) -> None:
        """End all threads, and let go of all memory."""
        if self._pool:
            self._pool.shutdown()
            self._pool = None
        self._images.clear()

    @contextlib.contextmanager
    def _beside(self, copy: Copy) -> Iterator[None]:
        """Work on streams of our own, so that training does not wait for it."""
        with contextlib.ExitStack() as stack:
            for device in copy.memory:
                if device.type == "cuda":
                    stream = self._streams.get(device) or torch.cuda.Stream(device)
                    self._streams[device] = stream
                    stack.enter_context(torch.cuda.stream(stream))
            yield

    def _settle(self, copy: Copy) -> None:
        """Wait until what was begun on streams of our own is done."""
        for device in copy.memory:
            if device.type == "cuda":
                done = torch.cuda.Event(blocking=True)
                done.record(self._streams[device])
                done.synchronize()

    def _brought(self, part: str, copy: Copy | None) -> dict[torch.device, memoryview]:
        """The memory of a copy where it can be hashed; from a CUDA device, soon to be there."""
        found: dict[torch.device, memoryview] = {}
        for device, memory in copy.memory.items() if copy else ():
            image = memory
            if device.type == "cuda":
                image = self._pinned(part, memory)
                image.copy_(memory, non_blocking=True)
            found[device] = image.numpy().data
        return found

    def _pinned(self, part: str, memory: torch.Tensor) -> torch.Tensor:
        image = self._images.get((part, memory.device))
        if image is None or image.numel() != memory.numel():
            image = torch.empty(memory.numel(), dtype=torch.uint8, device="cpu", pin_memory=True)
            self._images[part, memory.device] = image
        return image

    def _digest(self, plan: Plan, memory: dict[torch.device, memoryview]) -> bytes:
        views = []
        for at, start, stop in plan.pieces:
            first = plan.starts[at]
            views.append(memory[plan.homes[at]][first + start : first + stop])
        hashes = [b""] * len(views)

        def hash_some(indices: list[int]) -> None:
            for index in indices:
                hashes[index] = sha256(views[index]).digest()

        if self._threads == 1 or plan.layout.size < PIECE_BYTES:
            hash_some(list(range(len(views))))
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._threads)
            # A future for each piece would wake this thread for each, only to fight for the lock.
            list(self._pool.map(hash_some, _shared(views, self._threads)))
        return joined(plan.layout, iter(hashes))


def _shared(views: list[memoryview], threads: int) -> list[list[int]]:
    """Indices of the views in lists of about as many bytes each."""
    parts: list[list[int]] = [[] for _ in range(threads)]
    loads = [0] * threads
    for index in sorted(range(len(views)), key=lambda index: -len(views[index])):
        least = loads.index(min(loads))
        parts[least].append(index)
        loads[least] += len(views[index])
    return parts


def _moved(before: Slot, after: Slot) -> tuple[int, int]:
    assert before.model is not None
    assert after.model is not None
    old, new = before.rest, after.rest
    model = before.model.flats(), after.model.flats()
    if old is None or new is None or old.plan is new.plan:
        rest = tuple(copy.flats() if copy else {} for copy in (old, new))
    else:
        rest = old.named(), new.named()
    return moves((model[0], rest[0]), (model[1], rest[1]))
