"""Hashers for a whole verification: files and checkpoints, each by whichever is free.

Where there is much to hash, each has a process of its own, which needs no lock of the interpreter:
whoever reads marks or tests a model meanwhile does not notice.
"""

import contextlib
import os
import queue
import resource
from collections.abc import Iterator
from typing import BinaryIO, Self

from polo.protocol.layout import Layout
from polo.weights import sharing
from polo.weights.hasher import Hasher
from polo.weights.hashing import usual_threads

MOST_HELD = 2**28
"""Bytes of a checkpoint that is held in memory while it is looked at, and the next one beside it. A
larger one is read from its file piece by piece. Several that are hashed at a time have no more than
twice as many together, with those that are looked at three times."""

MUCH = 2**28
"""From so many bytes on, processes hash them: to start one takes as long as to hash a tenth."""

MOST_THREADS = 16


class Hashers:
    """Hashers for the checkpoints of a proof, each lent to one thread at a time.

    Args:
        layout: Layout of the checkpoints.
        count: How many checkpoints there are.
        threads: Threads or processes in all; by default one per core, at most sixteen, and where
            there is little to hash four.

    Attributes:
        holding: Whether a checkpoint is small enough to be held in memory.
        together: How many hashers there are.
        threads: How many threads each has.
        by_processes: Whether each has a process, which is started when it is lent first.
    """

    def __init__(self, layout: Layout, count: int, threads: int | None = None) -> None:
        self.holding = layout.size <= MOST_HELD
        shared = self.holding and sharing.is_shared(layout.size)
        self.by_processes = shared and count * layout.size >= MUCH
        most = min(MOST_THREADS, os.cpu_count() or 1) if self.by_processes else usual_threads()
        usual = threads or most
        # Beside those that are hashed, one or two are looked at. Each takes some descriptors.
        memory, handles = 2 * MOST_HELD // max(1, layout.size) - 1, _descriptors() // 8
        self.together = max(1, min(usual, count, memory, handles))
        self.threads = usual // self.together
        self._closed = False
        self._all = [Hasher(self.threads) for _ in range(self.together)]
        self._free: queue.SimpleQueue[Hasher] = queue.SimpleQueue()
        for hasher in self._all:
            self._free.put(hasher)

    @contextlib.contextmanager
    def lent(self) -> Iterator[Hasher]:
        """A hasher that is free, or will be; the caller's until the end of the block."""
        hasher = self._free.get()
        try:
            if self.by_processes and not self._closed:
                hasher.start()
            yield hasher
        finally:
            self._free.put(hasher)

    def digest(self, file: BinaryIO, size: int) -> bytes | None:
        """The SHA-256 of a file of so many bytes; None if no process has computed it."""
        if not self.by_processes or size < sharing.LARGE:
            return None
        with self.lent() as hasher:
            return hasher.digest(file, size)

    def close(self) -> None:
        """End all processes; whoever still uses one does without."""
        self._closed = True
        for hasher in self._all:
            hasher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _descriptors() -> int:
    """How many files this process may open, less what it needs for itself."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (2**20 if most == resource.RLIM_INFINITY else most) - 64
