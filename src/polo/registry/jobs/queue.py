"""The table of jobs: putting in, taking out under a lease, and noting how it ended."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Update, and_, or_, select, update
from sqlalchemy.engine import Row

from polo.registry.database import Database
from polo.registry.jobs.handlers import PERIODIC
from polo.registry.schema import jobs

if TYPE_CHECKING:
    from polo.registry.context import Registry
    from polo.registry.jobs.runner import Runner

QUEUES = ("cpu", "gpu")
LONG = ("verify", "scan")
"""Kinds of jobs that may take hours. Inside they have a thread of their own: provers wait for the
others, which give receipts."""

LEASE = 30
"""Seconds that whoever does a job has it for; renewed while it is being done."""

MOST_TRIES = 5
_MOST_ERROR = 2000


@dataclass(frozen=True)
class Taken:
    """A job that is being done.

    Attributes:
        id: Its row.
        kind: What to do.
        subject: What to do it with.
        queue: Where it came from.
        tries: The how-manieth try this is; a later one takes the job away from this one.
    """

    id: int
    kind: str
    subject: str
    queue: str
    tries: int


class Jobs:
    """Where jobs are put.

    Args:
        mode: `inside` or `procrastinate`, as in the settings.
        clock: Seconds since 1970.
    """

    def __init__(
        self, mode: str = "inside", clock: Callable[[], int] = lambda: int(time.time())
    ) -> None:
        self.mode = mode
        self._clock = clock
        self.stopping = threading.Event()
        self._wake = threading.Event()
        self._runners: list[Runner] = []

    def enqueue(
        self,
        connection: Connection,
        kind: str,
        subject: str,
        *,
        queue: str = "cpu",
        due: int | None = None,
    ) -> None:
        """Put a job in, as part of the caller's transaction.

        There is one job of a kind for a subject. One that waits or is being done stays; one that
        has ended is done again.

        Args:
            connection: The caller's transaction.
            kind: What to do; the name of a handler.
            subject: Id of the row that it is about.
            queue: Which hardware it needs.
            due: Not before this time; by default now, so that whoever came first is first.
        """
        due = self._clock() if due is None else due
        known = connection.execute(
            select(jobs.c.id, jobs.c.state).where(jobs.c.kind == kind, jobs.c.subject == subject)
        ).first()
        fresh = {"state": "waiting", "tries": 0, "due": due, "held_until": None, "error": None}
        if known is None:
            row = {"kind": kind, "subject": subject, "queue": queue, **fresh}
            number = connection.execute(jobs.insert().values(row).returning(jobs.c.id)).scalar_one()
        elif known.state in ("done", "broken"):
            again = {**fresh, "queue": queue}
            connection.execute(update(jobs).where(jobs.c.id == known.id).values(again))
            number = known.id
        else:
            return
        self.announce(connection, number, queue, due)

    def announce(self, connection: Connection, number: int, queue: str, due: int) -> None:
        """Tell whoever does the work that a row waits."""
        if self.mode == "procrastinate":
            from polo.registry.jobs.fleet import defer

            defer(connection, number, queue, due)
        else:
            self._wake.set()

    def start(self, registry: "Registry") -> None:
        """Begin to do the work inside this process, if it is this process's to do."""
        if self.mode == "procrastinate":
            from polo.registry.jobs.fleet import prepare

            prepare(registry.database)
            return
        from polo.registry.jobs.presence import inside
        from polo.registry.jobs.runner import Runner

        self.stopping.clear()
        queues = inside(registry.settings)
        self._runners = [Runner(registry, queues, self._wake, long=long) for long in (False, True)]
        for runner in self._runners:
            runner.start()

    def stop(self, timeout: float = 20) -> None:
        """Let running work end, or put itself back, and begin none."""
        self.stopping.set()
        self._wake.set()
        until = time.monotonic() + timeout
        while self._runners:
            self._runners.pop().join(max(0, until - time.monotonic()))


def take(
    database: Database,
    now: int,
    *,
    queues: Collection[str] = QUEUES,
    number: int | None = None,
    long: bool | None = None,
) -> Taken | None:
    """Take a job whose time has come, or whose lease ran out; None if there is none.

    Args:
        database: The database.
        now: The time.
        queues: Queues to look in.
        number: Only this job.
        long: Only jobs that may take long, or only others; by default all.
    """
    ready = or_(
        and_(jobs.c.state == "waiting", jobs.c.due <= now),
        and_(jobs.c.state == "running", jobs.c.held_until < now),
    )
    asked = select(jobs).where(ready, jobs.c.queue.in_(queues)).order_by(jobs.c.due, jobs.c.id)
    if number is not None:
        asked = asked.where(jobs.c.id == number)
    if long is not None:
        asked = asked.where(jobs.c.kind.in_(LONG) if long else jobs.c.kind.not_in(LONG))
    asked = asked.limit(1)
    with database.read() as connection:
        # Looking takes no lock, and most of the time there is nothing.
        if connection.execute(asked).first() is None:
            return None
    with database.begin() as connection:
        found = connection.execute(asked.with_for_update(skip_locked=True)).first()
        if found is None:
            return None
        held = {"state": "running", "tries": found.tries + 1, "held_until": now + LEASE}
        connection.execute(update(jobs).where(jobs.c.id == found.id).values(held))
        return Taken(found.id, found.kind, found.subject, found.queue, found.tries + 1)


def renew(database: Database, taken: Taken, now: int) -> bool:
    """Hold a job for longer; False if somebody else has it by now."""
    with database.begin() as connection:
        done = connection.execute(_own(taken).values(held_until=now + LEASE))
        return done.rowcount == 1


def finish(connection: Connection, taken: Taken, now: int) -> None:
    """The job is done."""
    connection.execute(_own(taken).values(state="done", due=now, held_until=None, error=None))


def put_back(connection: Connection, taken: Taken, due: int) -> bool:
    """The job is to be done later, and this try does not count."""
    values = {"state": "waiting", "tries": taken.tries - 1, "due": due, "held_until": None}
    return connection.execute(_own(taken).values(values)).rowcount == 1


def fail(connection: Connection, taken: Taken, error: str, now: int) -> int | None:
    """The try failed.

    Returns:
        When to try again; None if that was the last try.
    """
    due = now + min(5 * 2**taken.tries, 900)
    last = taken.tries >= MOST_TRIES
    state = "broken" if last else "waiting"
    values = {"state": state, "due": due, "held_until": None, "error": error[:_MOST_ERROR]}
    connection.execute(_own(taken).values(values))
    return None if last else due


def schedule(registry: "Registry") -> None:
    """Put in the jobs that come by themselves and whose time has come."""
    now = registry.clock()
    with registry.database.read() as connection:
        rows = connection.execute(select(jobs).where(jobs.c.subject == "")).all()
        known = {row.kind: row for row in rows}
    wanted = [kind for kind, every in PERIODIC.items() if _is_time(known.get(kind), every, now)]
    if not wanted:
        return
    with registry.database.begin() as connection:
        registry.database.lock(connection, "jobs.schedule")
        for kind in wanted:
            registry.jobs.enqueue(connection, kind, "")


def _is_time(row: "Row[tuple[object, ...]] | None", every: int, now: int) -> bool:
    return row is None or (row.state in ("done", "broken") and row.due + every <= now)


def _own(taken: Taken) -> Update:
    return update(jobs).where(
        jobs.c.id == taken.id, jobs.c.tries == taken.tries, jobs.c.state == "running"
    )
