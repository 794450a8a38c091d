"""Doing jobs: one at a time, under a lease that a second thread renews."""

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from polo.registry.jobs import handlers, queue
from polo.registry.jobs.handlers import GIVE_UP, HANDLERS, Later
from polo.registry.jobs.queue import LEASE, Taken

if TYPE_CHECKING:
    from polo.registry.context import Registry

POLL = 0.5
"""Seconds between two looks for work."""

_SCHEDULE = 10
"""Seconds between two looks for work that comes by itself."""

_LOG = logging.getLogger("polo.registry.jobs")


class Runner(threading.Thread):
    """A thread that does a server's jobs.

    Args:
        registry: The registry.
        queues: Queues to serve.
        wake: Set when there may be something to do.
        long: Whether it does the jobs that may take long, or the others.
    """

    def __init__(
        self, registry: "Registry", queues: Collection[str], wake: threading.Event, *, long: bool
    ) -> None:
        super().__init__(name="polo-long-jobs" if long else "polo-jobs", daemon=True)
        handlers.load()
        self._registry = registry
        self._queues = queues
        self._wake = wake
        self._long = long

    def run(self) -> None:
        """Do jobs until the registry stops."""
        scheduled = 0.0
        stopping = self._registry.jobs.stopping
        while not stopping.is_set():
            self._wake.clear()
            try:
                if time.monotonic() - scheduled > _SCHEDULE:
                    queue.schedule(self._registry)
                    scheduled = time.monotonic()
                while not stopping.is_set() and self._one():
                    pass
            except SQLAlchemyError:
                # A database that is away comes back; the work waits in it.
                _LOG.exception("the table of jobs cannot be read")
            self._wake.wait(POLL)

    def _one(self) -> bool:
        taken = queue.take(
            self._registry.database,
            self._registry.clock(),
            queues=tuple(self._queues),
            long=self._long,
        )
        if taken is None:
            return False
        do(self._registry, taken)
        return True


def do(registry: "Registry", taken: Taken) -> None:
    """Do a job that was taken, and note how it ended."""
    try:
        with _held(registry, taken):
            HANDLERS[taken.kind](registry, taken.subject)
    except Later as later:
        _again(registry, taken, registry.clock() + later.seconds)
    except Exception as error:  # A handler may fail in any way; the runner must not.
        _LOG.exception("job %s of %s failed", taken.kind, taken.subject)
        _failed(registry, taken, f"{type(error).__name__}: {error}")
    else:
        with registry.database.begin() as connection:
            queue.finish(connection, taken, registry.clock())


def _again(registry: "Registry", taken: Taken, due: int) -> None:
    with registry.database.begin() as connection:
        if queue.put_back(connection, taken, due):
            registry.jobs.announce(connection, taken.id, taken.queue, due)


def _failed(registry: "Registry", taken: Taken, error: str) -> None:
    with registry.database.begin() as connection:
        due = queue.fail(connection, taken, error, registry.clock())
        if due is not None:
            registry.jobs.announce(connection, taken.id, taken.queue, due)
    if due is None and taken.kind in GIVE_UP:
        GIVE_UP[taken.kind](registry, taken.subject, error)


@contextlib.contextmanager
def _held(registry: "Registry", taken: Taken) -> Iterator[None]:
    """Renew the lease for as long as the block runs."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE / 3):
            try:
                if not queue.renew(registry.database, taken, registry.clock()):
                    _LOG.warning("job %s of %s was taken over", taken.kind, taken.subject)
                    return
            except SQLAlchemyError:
                _LOG.exception("a lease cannot be renewed")

    thread = threading.Thread(target=renew, name="polo-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
