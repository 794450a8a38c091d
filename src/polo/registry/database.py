"""The database: SQLite in one file, or PostgreSQL.

Writers wait for each other on SQLite, so a write transaction takes the lock as it begins: one that
began by reading could not get it any more. What is committed is on the disk in either database.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from polo.errors import FormatError, MissingError, StoreError
from polo.registry import columns

BUSY_SECONDS = 15
"""How long a transaction waits for another one before it gives up."""

_POOL = 24


class Database:
    """Connections to one database.

    Args:
        url: `sqlite:///path` or `postgresql://user@host/name`.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._turn = threading.Lock()
        self._reading = self.engine.execution_options(reading=True, postgresql_readonly=True)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A write transaction: commits at the end, and takes everything back on an error."""
        with self._in_turn(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads; an attempt to write in it is an error."""
        with self._reading.begin() as connection:
            yield connection

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """On SQLite, wait for this process's other writers without asking over and over."""
        if not self.is_sqlite:
            yield
            return
        if not self._turn.acquire(timeout=BUSY_SECONDS):
            raise PoolTimeout(f"no turn to write within {BUSY_SECONDS} s")
        try:
            yield
        finally:
            self._turn.release()

    def lock(self, connection: Connection, name: str) -> None:
        """Let nobody else pass this line with the same name until the transaction ends.

        On SQLite a write transaction is alone already.
        """
        if not self.is_sqlite:
            number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
            connection.execute(text("select pg_advisory_xact_lock(:number)"), {"number": number})

    def close(self) -> None:
        """Close all connections; those that are in use, when they are given back."""
        event.listen(self.engine, "checkin", _drop)
        self.engine.dispose()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed.database)
        if parsed.get_backend_name() == "postgresql":
            columns.register()
            return create_engine(
                parsed,
                hide_parameters=True,
                pool_size=_POOL,
                max_overflow=0,
                pool_timeout=BUSY_SECONDS,
                pool_pre_ping=True,
                pool_use_lifo=True,  # One that was used just now has its statements prepared.
                connect_args={
                    "connect_timeout": BUSY_SECONDS,
                    "options": f"-c lock_timeout={BUSY_SECONDS * 1000}",
                },
            )
    except (ArgumentError, NoSuchModuleError) as error:
        raise FormatError(str(error), place="setting database") from error
    except ImportError as error:
        raise MissingError(
            f"the database needs {error.name}", advice="pip install 'polo-proof[registry]'"
        ) from error
    raise FormatError(
        f"{parsed.get_backend_name()} is not a database the registry knows",
        place="setting database",
        advice="Use sqlite:///… or postgresql://…",
    )


def _sqlite(path: str | None) -> Engine:
    if not path or path == ":memory:":
        raise FormatError(
            "SQLite in memory would forget everything, and each connection has its own",
            place="setting database",
        )
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"cannot be made: {error.strerror}", place=str(error.filename)) from error
    engine = create_engine(
        f"sqlite:///{path}",
        hide_parameters=True,
        pool_size=_POOL,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        connect_args={"timeout": BUSY_SECONDS},
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _take)
    return engine


def _drop(_connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    entry.invalidate()


def _prepare(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    # The driver's own transactions begin too late and skip statements; `_take` begins them.
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_SECONDS * 1000}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _take(connection: Connection) -> None:
    options: dict[str, Any] = dict(connection.get_execution_options())
    reading = bool(options.get("reading"))
    connection.exec_driver_sql(f"PRAGMA query_only={'ON' if reading else 'OFF'}")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
