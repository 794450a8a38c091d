"""Who serves which queue: this process, or workers that give signs of life."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, delete, func, select, update

from polo.registry.jobs.queue import QUEUES
from polo.registry.schema import jobs, workers
from polo.registry.settings import Settings

MISSING = 60
"""Seconds without a sign of life after which a worker does not count."""

_FORGOTTEN = 86_400
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
"""What drivers of graphics cards put there; the server itself has no torch to ask."""


@dataclass(frozen=True)
class Unserved:
    """A queue that is needed and that nobody serves.

    Attributes:
        queue: Its name.
        waiting: Jobs in it.
    """

    queue: str
    waiting: int

    def __str__(self) -> str:
        return f"queue {self.queue}: nobody serves it, and {self.waiting} jobs wait in it"


def has_gpu() -> bool:
    """Whether this machine has a graphics card with its driver."""
    return any(Path(device).exists() for device in _DEVICES)


def inside(settings: Settings) -> tuple[str, ...]:
    """Queues that a server does itself, where it does the work inside."""
    return settings.queues or (QUEUES if has_gpu() else ("cpu",))


def served(connection: Connection, settings: Settings, now: int) -> set[str]:
    """Queues that somebody serves."""
    if settings.jobs == "inside":
        return set(inside(settings))
    alive = select(workers.c.queue).where(workers.c.seen > now - MISSING)
    return set(connection.execute(alive).scalars())


def unserved(
    connection: Connection, settings: Settings, now: int, needed: Iterable[str]
) -> list[Unserved]:
    """Queues that nobody serves, of those that are needed or that jobs wait in.

    Args:
        connection: A transaction.
        settings: The registry's.
        now: The time.
        needed: Queues that what is on offer needs.
    """
    rows = connection.execute(
        select(jobs.c.queue, func.count()).where(jobs.c.state == "waiting").group_by(jobs.c.queue)
    )
    waiting = {str(queue): int(count) for queue, count in rows}
    lacking = {*needed, *waiting} - served(connection, settings, now)
    return [Unserved(queue, waiting.get(queue, 0)) for queue in sorted(lacking)]


def lacks(connection: Connection, settings: Settings, now: int, kind: str, subject: str) -> str:
    """The queue that a waiting job is in, if nobody serves it; else nothing."""
    queue = connection.execute(
        select(jobs.c.queue).where(
            jobs.c.kind == kind, jobs.c.subject == subject, jobs.c.state == "waiting"
        )
    ).scalar()
    return str(queue) if queue and queue not in served(connection, settings, now) else ""


def sign(connection: Connection, worker: str, queue: str, now: int) -> None:
    """A worker's sign of life."""
    known = connection.execute(update(workers).where(workers.c.id == worker).values(seen=now))
    if not known.rowcount:
        row = {"id": worker, "queue": queue, "since": now, "seen": now}
        connection.execute(workers.insert().values(row))
        connection.execute(delete(workers).where(workers.c.seen < now - _FORGOTTEN))


def leave(connection: Connection, worker: str) -> None:
    """A worker ends."""
    connection.execute(delete(workers).where(workers.c.id == worker))
