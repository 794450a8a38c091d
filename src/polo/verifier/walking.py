"""The stored checkpoints, newest to oldest, the next ones hashed while one is looked at.

Hashing needs processors and no lock of the interpreter, and a test of a model mostly waits for a
GPU: one after the other they take as long as both, side by side as long as the longer one. If there
is much to hash, processes of their own do it, which do not even ask for the lock.
"""

import contextlib
import os
import queue
import resource
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from polo.errors import PoloError
from polo.protocol.layout import Layout
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint
from polo.weights.files import FileCheckpoint
from polo.weights.hasher import Hasher
from polo.weights.hashing import commit, commit_by, usual_threads
from polo.weights.sharing import SharedMemory, is_shared

MOST_HELD = 2**28
"""Bytes of a checkpoint that is held in memory while it is looked at, and the next one beside it. A
larger one is read from its file piece by piece. Several that are hashed at a time have no more than
twice as many together."""

MUCH = 2**28
"""From so many bytes on, processes hash them: to start one takes as long as to hash a tenth."""

_MOST_THREADS = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Seen:
    """A stored checkpoint.

    Attributes:
        number: Number of its shard.
        checkpoint: It, for whoever looks at it until the next one is asked for; if its root could
            not be computed, it may be closed already. If it is held in memory, what was hashed is
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
    count: int,
    looked_at: Collection[int],
    keeping: bool = False,
    threads: int | None = None,
) -> Iterator[Seen]:
    """Every checkpoint with its root.

    Args:
        kept: The checkpoints; each may be closed when the next one is asked for.
        layout: Their layout.
        count: How many they are.
        looked_at: Shards whose checkpoints are looked at, and not at their roots alone.
        keeping: Whether who looks at a checkpoint may keep it; then all of those stay in memory.
        threads: Threads or processes for hashing.
    """
    small = layout.size <= MOST_HELD
    if keeping or not small:
        found = _one_by_one(kept, looked_at if keeping else (), threads)
        return ahead(found) if small and looked_at else found
    much = is_shared(layout.size) and count * layout.size >= MUCH
    usual = threads or (min(_MOST_THREADS, os.cpu_count() or 1) if much else usual_threads())
    # Beside those that are hashed, one is looked at. Each takes some descriptors.
    memory, handles = 2 * MOST_HELD // max(1, layout.size) - 1, _descriptors() // 8
    together = max(1, min(usual, count, memory, handles))
    return _side_by_side(kept, together, usual // together, by_processes=much)


def _one_by_one(
    kept: Iterator[tuple[int, FileCheckpoint]], held: Collection[int], threads: int | None
) -> Iterator[Seen]:
    """Every checkpoint with its root, and some of them in memory of their own."""
    for number, checkpoint in kept:
        own: Checkpoint = checkpoint
        try:
            if number in held:
                own = checkpoint.held()
            yield Seen(number, own, commit(own, threads=threads).root)
        except PoloError as error:
            yield Seen(number, own, error)


def _side_by_side(
    kept: Iterator[tuple[int, FileCheckpoint]], together: int, threads: int, *, by_processes: bool
) -> Iterator[Seen]:
    """Every checkpoint with its root, in memory that is used again.

    Args:
        kept: The checkpoints.
        together: How many are read and hashed at a time, each by a thread of its own.
        threads: How many threads hash one of them, here or in that one's process.
        by_processes: Whether processes hash.
    """
    free: list[memoryview] = []
    hashers: queue.SimpleQueue[Hasher] = queue.SimpleQueue()

    def room(size: int) -> memoryview:
        with contextlib.suppress(IndexError):
            return free.pop()
        return _room(size, shared=by_processes)

    def look(item: tuple[int, FileCheckpoint] | PoloError) -> Seen:
        if isinstance(item, PoloError):
            raise item
        number, file = item
        own: Checkpoint = file
        hasher = hashers.get()
        try:
            with file:
                own = held = file.held(room)
            done = commit_by(hasher, held) if by_processes else commit(held, threads=threads)
            return Seen(number, own, done.root)
        except PoloError as error:
            return Seen(number, own, error)
        finally:
            hashers.put(hasher)

    with contextlib.ExitStack() as stack:
        for _ in range(together):
            hasher = stack.enter_context(contextlib.closing(Hasher(threads)))
            if by_processes:
                hasher.start()
            hashers.put(hasher)
        opened = stack.enter_context(contextlib.ExitStack())
        files = ((number, opened.enter_context(checkpoint.again())) for number, checkpoint in kept)
        # The next one may have to be unpacked; that, too, is done meanwhile.
        pulled = stack.enter_context(contextlib.closing(ahead(files)))
        outcomes = at_once(look, _with_its_end(pulled), together, most=together)
        # Entered last, so that it ends first: its threads use all of the above.
        for _, coming in stack.enter_context(contextlib.closing(outcomes)):
            one = coming.result()
            yield one
            if isinstance(one.checkpoint, HeldCheckpoint):
                free.append(one.checkpoint.data)


def _descriptors() -> int:
    """How many files this process may open, less what it needs for itself."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (2**20 if most == resource.RLIM_INFINITY else most) - 64


def _room(size: int, *, shared: bool) -> memoryview:
    return memoryview((shared and SharedMemory.of(size)) or bytearray(size))


def _with_its_end(items: Iterator[_Item]) -> Iterator[_Item | PoloError]:
    """The same items, and what broke them off as the last: those before it are to be seen first."""
    try:
        yield from items
    except PoloError as error:
        yield error


def ahead(items: Iterator[_Item]) -> Generator[_Item]:
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
) -> Generator[tuple[_Item, "Future[_Result]"]]:
    """What becomes of every item, in their order, on several threads.

    Args:
        work: What to do with an item.
        items: The items.
        threads: How many threads; by default one per core, at most sixteen.
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
