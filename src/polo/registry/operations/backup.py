"""One file with everything a registry is, made while it serves.

The rows are those of one moment: on SQLite a transaction that reads sees the database as it was
when it began, on PostgreSQL a REPEATABLE READ one does. Files are written once and never changed,
so those that the rows name can be copied afterwards. Pieces of uploads that are under way are left
out, and so are their rows: whoever sends them begins anew.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Select, Table, func, select, text

from polo._version import __version__
from polo.errors import StoreError
from polo.registry import migrations
from polo.registry.context import wall_clock
from polo.registry.database import Database
from polo.registry.log import service as log
from polo.registry.objects import Objects, key_of
from polo.registry.operations.archive import ABOUT, KEY, About, BackupWriter
from polo.registry.operations.portable import chunks
from polo.registry.schema import metadata, objects, uploads
from polo.registry.settings import Settings
from polo.registry.vault import KEY_FILE
from polo.storage import atomic

_TOGETHER = 512


@dataclass(frozen=True)
class Made:
    """What a backup holds.

    Attributes:
        about: Its first member.
        bytes: Its size.
        objects: Files in it.
        gone: Files whose time was over before they could be copied.
    """

    about: About
    bytes: int
    objects: int
    gone: int


def backup(
    settings: Settings,
    path: Path,
    *,
    with_key: bool = True,
    with_objects: bool = True,
    clock: Callable[[], int] = wall_clock,
) -> Made:
    """Write a backup; the registry may go on serving meanwhile, in this process or another.

    Args:
        settings: The registry's.
        path: The file, which must not be there yet. Its owner alone can read it.
        with_key: Put the data key in. Without it the backup shows no secret, and is of no use
            without the key, which must then be kept elsewhere.
        with_objects: Put the files in; without them the object store needs a backup of its own.
        clock: Gives the time.
    """
    if path.exists():
        raise StoreError("there is something already", place=str(path), advice="Name a new file.")
    key_file = settings.data / KEY_FILE
    if not key_file.exists():
        raise StoreError(
            "there is no registry here",
            place=str(settings.data),
            advice="Name its folder: --data, or --file with its settings.",
        )
    database = Database(settings.database)
    try:
        with atomic.replacing(path, mode=0o600, unguessable=True) as file:
            with BackupWriter(file) as writer:
                about, wanted = _write_rows(
                    database, writer, settings, clock(), with_key, with_objects
                )
                if with_key:
                    writer.add(KEY, key_file.read_bytes())
                gone = _write_objects(database, Objects(settings.objects), writer, wanted, path)
            size = file.tell()
    finally:
        database.close()
    return Made(about, size, len(wanted) - gone, gone)


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """A transaction that reads one state of the database, however long it takes."""
    level = {} if database.is_sqlite else {"isolation_level": "REPEATABLE READ"}
    engine = database.engine.execution_options(reading=True, postgresql_readonly=True, **level)
    with engine.begin() as connection:
        yield connection


def revision_of(connection: Connection) -> str:
    """The shape of the database, which must be the one that this version knows."""
    found: str = connection.execute(text("select version_num from alembic_version")).scalar_one()
    if found != migrations.latest():
        raise StoreError(
            f"the database is at {found}, and this version knows {migrations.latest()}",
            place="database",
            advice="Make the backup with the version of PoLO that serves it.",
        )
    return found


def _write_rows(
    database: Database,
    writer: BackupWriter,
    settings: Settings,
    now: int,
    with_key: bool,
    with_objects: bool,
) -> tuple[About, list[str]]:
    """Write what it is of, and all tables; returns the digests of the files it names, too."""
    with snapshot(database) as connection:
        head = log.newest(connection)
        about = About(
            made=now,
            version=__version__,
            revision=revision_of(connection),
            origin=head.origin if head else settings.origin,  # Only its own name restores it.
            size=head.size if head else 0,
            root=head.root if head else None,
            tables={table.name: _count(connection, table) for table in metadata.sorted_tables},
            key=with_key,
            objects=with_objects,
        )
        writer.add(ABOUT, about.to_bytes())
        for table in metadata.sorted_tables:
            streaming = {"yield_per": _TOGETHER}
            with connection.execute(_rows(table), execution_options=streaming) as rows:
                for number, piece in enumerate(chunks(table, rows)):
                    writer.add(f"tables/{table.name}/{number:08}.jsonl", piece)
        wanted = connection.execute(select(objects.c.sha256).distinct()).scalars()
        return about, sorted(wanted) if with_objects else []


def _rows(table: Table) -> "Select[tuple[object, ...]]":
    query = select(*table.columns).order_by(*table.primary_key.columns)
    return query.where(table.c.state != "open") if table is uploads else query


def _count(connection: Connection, table: Table) -> int:
    counting = select(func.count()).select_from(_rows(table).order_by(None).subquery())
    return connection.execute(counting).scalar_one()


def _write_objects(
    database: Database, store: Objects, writer: BackupWriter, wanted: list[str], path: Path
) -> int:
    """Copy the files; returns how many are gone since their time was over."""
    gone = 0
    with tempfile.TemporaryDirectory(prefix=".polo-backup-", dir=path.parent) as folder:
        through = Path(folder) / "object"
        for sha256 in wanted:
            try:
                store.fetch(key_of(sha256), through)
            except StoreError:
                if _is_wanted(database, sha256):
                    raise
                gone += 1
                continue
            with through.open("rb") as file:
                writer.copy(f"objects/{key_of(sha256)}", through.stat().st_size, file)
            through.unlink()
    return gone


def _is_wanted(database: Database, sha256: str) -> bool:
    """Whether a row still names the file: one whose time is over may be gone by now.

    Upkeep removes the file a moment before the row, so a row is looked for more than once.
    """
    query = select(objects.c.sha256).where(objects.c.sha256 == sha256).limit(1)
    for wait in (0.0, 0.2, 1.0, 3.0):
        time.sleep(wait)
        with database.read() as connection:
            if connection.execute(query).first() is None:
                return False
    return True
