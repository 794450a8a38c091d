"""The stored checkpoints, newest to oldest, each hashed while the one before is looked at.

Hashing needs processors and no lock of the interpreter, and a test of a model mostly waits for a
GPU: one after the other they take as long as both, side by side as long as the longer one. Where
nothing is looked at, a few checkpoints are hashed at a time.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from polo.errors import PoloError
from polo.protocol.layout import Layout
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint
from polo.weights.files import FileCheckpoint
from polo.weights.hashing import commit, usual_threads

MOST_HELD = 2**28
"""Bytes of a checkpoint that is held in memory while it is looked at, and the next one beside it. A
larger one is read from its file piece by piece. Several that are hashed at a time have no more than
twice as many together."""

_MOST_THREADS = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Seen:
    """A stored checkpoint.

    Attributes:
        number: Number of its shard.
        checkpoint: It, for whoever looks at it; if its root could not be computed, or if it was not
            to be looked at, it may be closed already. If it is held in memory, what was hashed is
            what it is.
        root: Its root, or why it could not be computed.
    """

    number: int
    checkpoint: Checkpoint
    root: bytes | PoloError


def seen(
    kept: Iterator[tuple[int, FileCheckpoint]],
    layout: Layout,
    *,
    looked_at: Collection[int],
    keeping: bool = False,
    threads: int | None = None,
) -> Iterator[Seen]:
    """Every checkpoint with its root.

    Args:
        kept: The checkpoints; each may be closed when the next one is asked for.
        layout: Their layout.
        looked_at: Shards whose checkpoints are looked at, and not at their roots alone.
        keeping: Whether who looks at a checkpoint may keep it; then all of those are in memory.
        threads: Threads for hashing.
    """
    small = layout.size <= MOST_HELD
    rooms: deque[memoryview] = deque()

    def room(size: int) -> memoryview:
        """New memory, or that of the one before the last, which nobody looks at any more."""
        if keeping:
            return memoryview(bytearray(size))
        rooms.append(rooms.popleft() if len(rooms) == 2 else memoryview(bytearray(size)))
        return rooms[-1]

    def looked(number: int, checkpoint: FileCheckpoint) -> Seen:
        own: Checkpoint = checkpoint
        try:
            if number in looked_at and (small or keeping):
                own = checkpoint.held(room)
            return Seen(number, own, commit(own, threads=threads).root)
        except PoloError as error:
            return Seen(number, own, error)

    # Beside those that are hashed, one is read and one is handed out.
    together = min(threads or usual_threads(), 2 * MOST_HELD // max(1, layout.size) - 2)
    if not looked_at and together > 1:
        return _hashed(kept, together)
    found = (looked(number, checkpoint) for number, checkpoint in kept)
    return ahead(found) if small and looked_at else found


def _hashed(kept: Iterator[tuple[int, FileCheckpoint]], threads: int) -> Iterator[Seen]:
    """Every checkpoint with its root, which is all that is asked of it.

    Files are read here, one after the other; each thread then hashes a checkpoint of its own, and
    what is left to do between two of them is done beside the others' hashing.
    """
    free: list[memoryview] = []

    def room(size: int) -> memoryview:
        return free.pop() if free else memoryview(bytearray(size))

    def read() -> Iterator[tuple[int, Checkpoint, PoloError | None]]:
        for number, checkpoint in kept:
            try:
                yield number, checkpoint.held(room), None
            except PoloError as error:
                yield number, checkpoint, error

    def root(item: tuple[int, Checkpoint, PoloError | None] | PoloError) -> bytes | PoloError:
        if isinstance(item, PoloError):
            return item
        _, checkpoint, error = item
        try:
            return error or commit(checkpoint, threads=1).root
        except PoloError as wrong:
            return wrong

    for item, found in at_once(root, _with_its_end(read()), threads, most=threads):
        if isinstance(item, PoloError):
            raise item
        number, checkpoint, _ = item
        yield Seen(number, checkpoint, found.result())
        if isinstance(checkpoint, HeldCheckpoint):
            free.append(checkpoint.data)


def _with_its_end(items: Iterator[_Item]) -> Iterator[_Item | PoloError]:
    """The same items, and what broke them off as the last: those before it are to be seen first."""
    try:
        yield from items
    except PoloError as error:
        yield error


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same items, each made on a thread of its own while the one before is looked at."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(_one, items)
        while item := coming.result():
            coming = pool.submit(_one, items)
            yield item[0]


def _one(items: Iterator[_Item]) -> tuple[_Item] | None:
    for item in items:
        return (item,)
    return None


def at_once(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    threads: int | None = None,
    *,
    most: int = 0,
) -> Iterator[tuple[_Item, "Future[_Result]"]]:
    """What becomes of every item, in their order, on several threads.

    Args:
        work: What to do with an item.
        items: The items.
        threads: How many threads; by default one per core, at most eight.
        most: How many items are under way at a time, beside the one that is handed out; by default
            twice as many as threads.
    """
    count = threads or min(_MOST_THREADS, os.cpu_count() or 1)
    pool, coming = ThreadPoolExecutor(count), deque[tuple[_Item, Future[_Result]]]()
    try:
        for item in items:
            coming.append((item, pool.submit(work, item)))
            # Few at a time: who interrupts this does not wait for all of them.
            if len(coming) > (most or 2 * count):
                yield coming.popleft()
        yield from coming
    finally:
        pool.shutdown(cancel_futures=True)
