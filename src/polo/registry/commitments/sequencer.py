"""The one writer of the log: takes what is waiting, and answers when it is on the disk."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from polo.errors import PoloError
from polo.registry.commitments.answers import Answer
from polo.registry.commitments.chains import Chains
from polo.registry.commitments.group import Draw, Group, Result
from polo.registry.commitments.rules import Submission
from polo.registry.database import Database
from polo.registry.log import keys
from polo.registry.log.growing import Growth
from polo.registry.observing import LOGGER
from polo.registry.problems import Problem
from polo.registry.vault import Vault

WAITING = 1024
"""Entries that may wait; more are asked to come back."""

TOGETHER = 128
"""Most entries of one transaction."""

LOCK = "log"
"""Name of the lock that whoever appends to the log holds."""

_CROWD, _GATHER = 4, 0.003
"""After a group of so many the next one waits so many seconds for more to come: a commit costs the
same for one and for all."""

_RETRY_AFTER = 1


@dataclass(frozen=True)
class _Item:
    submission: Submission
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Answer]"


class Sequencer:
    """Appends entries in groups, in a thread of its own that starts with the first entry.

    Args:
        database: Where to.
        vault: Has the log's key and opens the chains' secrets.
        origin: The log's name.
        clock: Seconds since 1970.
        draw: Decides which entries wait for a challenge.
    """

    def __init__(
        self,
        database: Database,
        vault: Vault,
        *,
        origin: str,
        clock: Callable[[], int],
        draw: Draw,
    ) -> None:
        self.chains = Chains(database, vault)
        self._database = database
        self._vault = vault
        self._origin = origin
        self._clock = clock
        self._draw = draw
        self._growth = Growth(origin)
        self._queue: queue.Queue[_Item | None] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._crowded = False

    async def submit(self, submission: Submission) -> Answer:
        """Append an entry; returns once it is on the disk.

        Raises:
            Problem: It is refused, or too many are waiting.
        """
        self._start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        try:
            self._queue.put_nowait(_Item(submission, loop, future))
        except queue.Full:
            raise _busy(f"{WAITING} commitments are waiting") from None
        return await future

    def settle(self, submissions: Sequence[Submission]) -> list[Result]:
        """Append a group now, in one transaction, in the caller's thread."""
        with self._database.begin() as connection:
            self._database.lock(connection, LOCK)
            if any(item.attached is not None for item in submissions):
                # Whoever removes files that nothing names holds it, too.
                self._database.lock(connection, "objects")
            group = Group(
                connection,
                submissions,
                self._growth,
                self._origin,
                keys.signers(self._vault, connection, self._clock()),
                self._draw,
                self._clock(),
            )
            results = group.settle()
        if group.appended:
            self._growth.keep(group.appended)
        return results

    @property
    def waiting(self) -> int:
        """Entries that are waiting, more or less."""
        return self._queue.qsize()

    def close(self) -> None:
        """Finish what is waiting, then stop; entries that come later are refused."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _start(self) -> None:
        if self._thread is not None and not self._closed:
            return
        with self._lock:
            if self._closed:
                raise _busy("the registry is shutting down")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sequencer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            items, last = self._take(first)
            _deliver(list(zip(items, self._results(items), strict=True)))
            if last:
                break
        self._refuse_rest()

    def _take(self, first: _Item) -> tuple[list[_Item], bool]:
        """What is waiting, and whether the sequencer is to stop after it."""
        items = [first]
        until = time.monotonic() + (_GATHER if self._crowded else 0)
        while len(items) < TOGETHER:
            try:
                item = self._queue.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                break
            if item is None:
                return items, True
            items.append(item)
        self._crowded = len(items) >= _CROWD
        return items, False

    def _results(self, items: Sequence[_Item]) -> list[Result]:
        try:
            return self.settle([item.submission for item in items])
        except (OperationalError, PoolTimeout):
            # It would be the same for each of them, after a long wait.
            LOGGER.exception("the database did not take a group of %d", len(items))
            return [_unwritten() for _ in items]
        except Exception:
            LOGGER.exception("a group of %d failed", len(items))
        # One entry that the database cannot take must not sink the others.
        return [self._alone(item) for item in items]

    def _alone(self, item: _Item) -> Result:
        try:
            return self.settle([item.submission])[0]
        except Exception:
            LOGGER.exception("an entry of %s failed", item.submission.chain.id)
            return _unwritten()

    def _refuse_rest(self) -> None:
        rest = []
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                rest.append((item, _busy("the registry is shutting down")))
        _deliver(rest)


def _busy(detail: str) -> Problem:
    return Problem(
        503, "commitment.queue-full", detail, headers={"Retry-After": str(_RETRY_AFTER)},
        advice="Send the same bytes again: an entry that was taken is answered the same.",
    )  # fmt: skip


def _unwritten() -> Problem:
    return Problem(
        503,
        "registry.busy",
        "the commitment could not be written",
        advice="Send the same bytes again.",
        headers={"Retry-After": "2"},
    )


def _deliver(results: "Sequence[tuple[_Item, Result]]") -> None:
    """Wake all who wait, with one call for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[_Item, Result]]] = {}
    for item, result in results:
        loops.setdefault(item.loop, []).append((item, result))
    for loop, of_loop in loops.items():
        # The loop is closed where the server is gone; nobody waits there any more.
        if not loop.is_closed():
            loop.call_soon_threadsafe(_wake, of_loop)


def _wake(results: "Sequence[tuple[_Item, Result]]") -> None:
    for item, result in results:
        if item.future.done():  # Whoever waited has hung up.
            continue
        if isinstance(result, PoloError):
            item.future.set_exception(result)
        else:
            item.future.set_result(result)
