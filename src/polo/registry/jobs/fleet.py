"""Workers on other machines: procrastinate carries the numbers of rows to whoever has the hardware.

The row in `jobs` stays the truth. A message says no more than its number, so one that comes twice
or too late does no harm. Messages of a worker that was killed are sent again when its heartbeat is
missed.
"""

import asyncio
import contextlib
import datetime
import logging
import secrets
import signal
from typing import TYPE_CHECKING

import procrastinate
from procrastinate.jobs import Job
from procrastinate.manager import JobManager
from sqlalchemy import Connection, select, text

from polo.registry.database import Database
from polo.registry.jobs import handlers, presence, queue, runner
from polo.registry.schema import jobs

if TYPE_CHECKING:
    from polo.registry.context import Registry

TASK = "polo.do"
HEARTBEAT = 5
STALLED = 20
"""Seconds without a heartbeat after which a worker counts as dead."""

_LOG = logging.getLogger("polo.registry.worker")
_SENDING = JobManager(procrastinate.SyncPsycopgConnector())
"""Never opened: every message goes through the caller's own connection."""


def defer(connection: Connection, number: int, queue_name: str, due: int) -> None:
    """Send the number of a row to the workers, as part of the caller's transaction."""
    when = datetime.datetime.fromtimestamp(due, datetime.UTC) if due else None
    message = Job(
        id=None,
        queue=queue_name,
        lock=None,
        queueing_lock=None,
        task_name=TASK,
        task_kwargs={"number": number},
        scheduled_at=when,
    )
    _SENDING.defer_job(message, connection=connection.connection.driver_connection)


def prepare(database: Database) -> None:
    """Make procrastinate's own tables, if they are not there."""
    with database.begin() as connection:
        database.lock(connection, "jobs.prepare")
        found = connection.execute(text("select to_regclass('procrastinate_jobs')")).scalar()
        if found is None:
            script = procrastinate.schema.SchemaManager.get_schema()
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute(script)


def app_of(registry: "Registry") -> procrastinate.App:
    """The app that a worker runs."""
    url = registry.database.engine.url.set(drivername="postgresql")
    conninfo = url.render_as_string(hide_password=False)
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=conninfo, min_size=1, max_size=8)
    )

    @app.task(name=TASK)
    def do(number: int) -> None:
        do_number(registry, number)

    return app


def do_number(registry: "Registry", number: int) -> None:
    """Do the job of a row, if it is there to be done."""
    now = registry.clock()
    taken = queue.take(registry.database, now, number=number)
    if taken is not None:
        runner.do(registry, taken)
        return
    with registry.database.begin() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == number)).first()
        if row is not None and row.state in ("waiting", "running"):
            # Somebody has it, or had it and died: look again when the lease is over.
            later = max(row.held_until or row.due, now) + 1
            registry.jobs.announce(connection, number, row.queue, later)


async def work(registry: "Registry", queue_name: str, *, concurrency: int = 1) -> None:
    """Do the jobs of one queue until the process is told to stop.

    Args:
        registry: The registry, with jobs by procrastinate.
        queue_name: Which queue: `cpu` or `gpu`.
        concurrency: Jobs at the same time.
    """
    handlers.load()
    prepare(registry.database)
    app = app_of(registry)
    async with app.open_async():
        name, over = secrets.token_hex(16), asyncio.Event()
        upkeep = asyncio.create_task(_upkeep(registry, app, name, queue_name, over))
        working = asyncio.create_task(
            app.run_worker_async(
                queues=[queue_name],
                concurrency=concurrency,
                delete_jobs="successful",
                update_heartbeat_interval=HEARTBEAT,
                stalled_worker_timeout=STALLED,
                shutdown_graceful_timeout=registry.settings.shutdown_seconds,
                install_signal_handlers=False,
            )
        )
        _stop_on_signals(registry, working)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await working
        finally:
            registry.jobs.stopping.set()
            over.set()
            # It may be saying that it lives: that must not come after it has left.
            await upkeep
            with registry.database.begin() as connection:
                presence.leave(connection, name)


def _stop_on_signals(registry: "Registry", working: "asyncio.Task[None]") -> None:
    """Let what runs put itself back, and take nothing more."""

    def stop() -> None:
        registry.jobs.stopping.set()
        working.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _upkeep(
    registry: "Registry", app: procrastinate.App, name: str, queue_: str, over: asyncio.Event
) -> None:
    """Say that this worker lives, send again what dead ones had, put in what comes by itself."""

    def sign() -> None:
        with registry.database.begin() as connection:
            presence.sign(connection, name, queue_, registry.clock())

    while not over.is_set():
        try:
            await asyncio.to_thread(sign)
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED):
                _LOG.warning("a worker died; its message %s is sent again", job.id)
                await app.job_manager.retry_job(job)
            await asyncio.to_thread(queue.schedule, registry)
        except Exception:  # Whatever is away comes back; the worker must not end by it.
            _LOG.exception("upkeep failed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), HEARTBEAT)
