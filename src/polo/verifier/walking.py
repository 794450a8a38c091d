"""The stored checkpoints, newest to oldest, the next ones hashed while one is looked at.

Hashing needs processors and no lock of the interpreter, and a test of a model mostly waits for a
GPU: one after the other they take as long as both, side by side as long as the longer one.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from polo.errors import PoloError
from polo.verifier.hashers import Hashers
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint
from polo.weights.files import FileCheckpoint
from polo.weights.hashing import commit, commit_by
from polo.weights.sharing import SharedMemory

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Seen:
    """A stored checkpoint.

    Attributes:
        number: Number of its shard.
        checkpoint: It, for whoever looks at it until the next one is asked for, or the next but
            one; if its root could not be computed, it may be closed already. If it is held in
            memory, what was hashed is what it is.
        root: Its root, or why it could not be computed.
    """

    number: int
    checkpoint: Checkpoint
    root: bytes | PoloError


def seen(
    kept: Iterator[tuple[int, FileCheckpoint]],
    hashers: Hashers,
    *,
    looked_at: Collection[int],
    keeping: bool = False,
    longer: bool = False,
    threads: int | None = None,
) -> Generator[Seen]:
    """Every checkpoint with its root.

    Args:
        kept: The checkpoints; each may be closed when the next one is asked for.
        hashers: Hash them.
        looked_at: Shards whose checkpoints are looked at, and not at their roots alone.
        keeping: Whether who looks at a checkpoint may keep it; then each has memory of its own.
        longer: Whether a checkpoint stays as it is until the next but one is asked for.
        threads: Threads for hashing one, where they are hashed one after the other.
    """
    if not hashers.holding:
        return _one_by_one(kept, looked_at if keeping else (), threads)
    return _side_by_side(kept, hashers, behind=2 if longer else 1, again=not keeping)


def _one_by_one(
    kept: Iterator[tuple[int, FileCheckpoint]], held: Collection[int], threads: int | None
) -> Generator[Seen]:
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
    kept: Iterator[tuple[int, FileCheckpoint]], hashers: Hashers, *, behind: int, again: bool
) -> Generator[Seen]:
    """Every checkpoint with its root, held in memory.

    Args:
        kept: The checkpoints.
        hashers: Hash them; as many are read and hashed at a time, each by a thread of its own.
        behind: So many checkpoints stay as they are after they are handed out.
        again: Whether memory is used again then; else they stay for good.
    """
    free: list[memoryview] = []
    out: deque[Seen] = deque()

    def room(size: int) -> memoryview:
        with contextlib.suppress(IndexError):
            return free.pop()
        return _room(size, shared=hashers.by_processes)

    def look(item: tuple[int, FileCheckpoint] | PoloError) -> Seen:
        if isinstance(item, PoloError):
            raise item
        number, file = item
        own: Checkpoint = file
        try:
            with hashers.lent() as hasher:
                with file:
                    own = held = file.held(room)
                if hashers.by_processes:
                    return Seen(number, own, commit_by(hasher, held).root)
                return Seen(number, own, commit(held, threads=hashers.threads).root)
        except PoloError as error:
            return Seen(number, own, error)

    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(contextlib.ExitStack())
        files = ((number, opened.enter_context(checkpoint.again())) for number, checkpoint in kept)
        # The next one may have to be unpacked; that, too, is done meanwhile.
        pulled = stack.enter_context(contextlib.closing(ahead(files)))
        outcomes = at_once(look, _with_its_end(pulled), hashers.together)
        # Entered last, so that it ends first: its threads use all of the above.
        for _, coming in stack.enter_context(contextlib.closing(outcomes)):
            out.append(coming.result())
            yield out[-1]
            if len(out) == behind:
                done = out.popleft().checkpoint
                if again and isinstance(done, HeldCheckpoint):
                    free.append(done.data)


class Aside(Generic[_Item]):
    """Items that are made on a thread of their own.

    Attributes:
        error: What broke them off.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._found: list[_Item] = []
        self._left = False
        self._thread: threading.Thread | None = None

    def start(self, items: Iterator[_Item]) -> None:
        """Make them from now on."""
        self._thread = threading.Thread(target=self._make, args=(items,), daemon=True)
        self._thread.start()

    def make(self, items: Iterator[_Item]) -> None:
        """Make them now, on this thread."""
        try:
            self._found.extend(items)
        except OSError as error:
            self.error = error

    def is_done(self, seconds: float) -> bool:
        """Whether all are made, or they broke off; waits for so long."""
        if self._thread:
            self._thread.join(seconds)
        return not (self._thread and self._thread.is_alive())

    def found(self) -> Iterator[_Item]:
        """All items; what broke them off comes after the last one."""
        self.join()
        yield from self._found
        if self.error:
            raise self.error

    def leave(self) -> None:
        """Make no more after the one at hand."""
        self._left = True

    def join(self) -> None:
        """Wait until all are made, or left."""
        if self._thread:
            self._thread.join()

    def _make(self, items: Iterator[_Item]) -> None:
        try:
            for item in items:
                self._found.append(item)
                if self._left:
                    return
        except BaseException as error:
            self.error = error


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
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Generator[tuple[_Item, "Future[_Result]"]]:
    """What becomes of every item, in their order, on several threads.

    Args:
        work: What to do with an item.
        items: The items.
        threads: How many threads; as many items are under way, beside the one that is handed out.
    """
    pool, coming = ThreadPoolExecutor(threads), deque[tuple[_Item, Future[_Result]]]()
    try:
        for item in items:
            coming.append((item, pool.submit(work, item)))
            # Few at a time: who interrupts this does not wait for all of them.
            if len(coming) > threads:
                yield coming.popleft()
        yield from coming
    finally:
        pool.shutdown(cancel_futures=True)
