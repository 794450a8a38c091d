"""A registry from its backup, into either kind of database, and only where none is yet.

Everything is checked before the transaction is committed: the digests of the file, the log's root
and checkpoints, the receipts' signatures, that the data key opens the secrets. What fails leaves no
row behind.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, delete, func, insert, inspect, select, text, update

from polo.errors import FormatError, StoreError
from polo.registry import migrations
from polo.registry.commitments.chains import about_secret
from polo.registry.context import wall_clock
from polo.registry.database import Database
from polo.registry.jobs import Jobs
from polo.registry.log import service as log
from polo.registry.objects import Objects, key_of
from polo.registry.operations.archive import KEY, About, Member, check, members
from polo.registry.operations.auditing import Audit
from polo.registry.operations.portable import rows_in
from polo.registry.schema import enrolments, issuer_keys, jobs, metadata, objects
from polo.registry.settings import Settings
from polo.registry.vault import KEY_FILE, LOG, Vault
from polo.storage import atomic

_EMPTY = "Name an empty folder and an empty database; nothing is ever written over."


def restore(settings: Settings, path: Path, *, clock: Callable[[], int] = wall_clock) -> About:
    """Make a registry out of a backup.

    Args:
        settings: Where to: its folder, database and object store. They must be empty, except that
            the data key may be there, and files of the same digests.
        path: The backup.
        clock: Gives the time.

    Returns:
        What the backup says about itself.

    Raises:
        PoloError: The backup is damaged or another's, or there is a registry already.
    """
    with path.open("rb") as file:
        about = check(file, str(path))
        _check_fits(about, settings)
        key = _data_key(file, about, settings)
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = Database(settings.database)
        try:
            _check_empty(database)
            migrations.upgrade(database)
            if settings.jobs == "procrastinate":
                from polo.registry.jobs.fleet import prepare

                prepare(database)
            store = Objects(settings.objects)
            with database.begin() as connection:
                database.lock(connection, "keys")
                _Restoring(connection, about, store, Vault(key), settings).run(file, clock())
                _write_key(settings.data, key)
        finally:
            database.close()
    return about


class _Restoring:
    """One restore, inside its transaction."""

    def __init__(
        self,
        connection: Connection,
        about: About,
        store: Objects,
        vault: Vault,
        settings: Settings,
    ) -> None:
        self.connection = connection
        self.about = about
        self.store = store
        self.vault = vault
        self.settings = settings
        self.counts = dict.fromkeys(metadata.tables, 0)

    def run(self, file: BinaryIO, now: int) -> None:
        for member in members(file, "backup"):
            kind, _, rest = member.name.partition("/")
            if kind == "tables":
                self._rows(rest.split("/")[0], member)
            elif kind == "objects":
                self._object(rest, member)
        if self.counts != self.about.tables:
            raise FormatError("the tables have not as many rows as they should", place="backup")
        self._continue_counting()
        self._check()
        self._requeue(now)

    def _rows(self, name: str, member: Member) -> None:
        table = metadata.tables.get(name)
        if table is None:
            raise FormatError("is no table of a registry", place=member.name)
        rows = rows_in(table, member.whole(), member.name)
        if rows:
            self.connection.execute(insert(table), rows)
        self.counts[name] += len(rows)

    def _object(self, key: str, member: Member) -> None:
        through = self.settings.data / f".restoring-{os.getpid()}"
        try:
            with atomic.replacing(through, mode=0o600) as file:
                for piece in member.pieces:
                    file.write(piece)
            self.store.put(key, through)
        finally:
            through.unlink(missing_ok=True)

    def _continue_counting(self) -> None:
        """PostgreSQL counts apart from the rows: the next number comes after the last."""
        if self.connection.dialect.name == "sqlite":
            return
        for name in ("jobs", "events"):
            self.connection.execute(
                text(
                    f"select setval(pg_get_serial_sequence('{name}', 'id'),"  # noqa: S608
                    f" coalesce((select max(id) from {name}), 0) + 1, false)"
                )
            )

    def _check(self) -> None:
        head = log.newest(self.connection)
        found = (head.size, head.root) if head else (0, None)
        if found != (self.about.size, self.about.root):
            raise FormatError("the log is not the one that the backup says", place="backup")
        key = self.connection.execute(
            select(issuer_keys.c.key).where(issuer_keys.c.use == LOG, issuer_keys.c.until.is_(None))
        ).scalar_one()
        audit = Audit(self.connection, self.about.origin, bytes(key))
        fault = next(audit.faults(), None)
        if fault is not None:
            raise StoreError(fault, place="backup", advice="Use another copy.")
        self.vault.log_key(self.connection)
        self.vault.issuer(self.connection)
        for row in self.connection.execute(select(enrolments.c.id, enrolments.c.secret)):
            self.vault.open(bytes(row.secret), about_secret(row.id))
        self._check_objects()

    def _check_objects(self) -> None:
        """See that every file is there; the time of some was over while the backup was made."""
        rows = self.connection.execute(select(objects.c.sha256, objects.c.size).distinct()).all()
        gone = [row.sha256 for row in rows if self.store.size(key_of(row.sha256)) != row.size]
        if gone and not self.about.objects:
            raise StoreError(
                f"{len(gone)} files of {len(rows)} are not in the object store",
                place=self.settings.objects,
                advice="The backup was made without files: bring the object store back first.",
            )
        for sha256 in gone:
            self.connection.execute(delete(objects).where(objects.c.sha256 == sha256))

    def _requeue(self, now: int) -> None:
        """What was being done when the backup was made is to be done again."""
        waiting = jobs.c.state.in_(("waiting", "running"))
        self.connection.execute(
            update(jobs).where(waiting).values(state="waiting", held_until=None)
        )
        queue = Jobs(self.settings.jobs)
        for row in self.connection.execute(select(jobs).where(waiting)).all():
            queue.announce(self.connection, row.id, row.queue, max(row.due, now))


def _check_fits(about: About, settings: Settings) -> None:
    if about.revision != migrations.latest():
        raise StoreError(
            f"it was made by version {about.version}, whose database has another shape",
            place="backup",
            advice=f"Restore with PoLO {about.version}, then: polo registry migrate.",
        )
    if about.origin != settings.origin:
        raise StoreError(
            f"it is of {about.origin!r}, and the settings name {settings.origin!r}",
            place="backup",
            advice=f"Give --set origin={about.origin}: signatures and the log are bound to it.",
        )


def _data_key(file: BinaryIO, about: About, settings: Settings) -> bytes:
    """The data key: out of the backup, or the one that was put in the folder."""
    path = settings.data / KEY_FILE
    there = path.read_bytes() if path.exists() else None
    if not about.key:
        if there is None:
            raise StoreError(
                "the backup was made without the data key",
                place=str(path),
                advice=f"Put the registry's {KEY_FILE} there first.",
            )
        return there
    key = next(member for member in members(file, "backup") if member.name == KEY).whole(1024)
    if len(key) != 32:
        raise FormatError("is no data key: it has 32 bytes", place=KEY)
    if there not in (None, key):
        raise StoreError("another registry's data key is here", place=str(path), advice=_EMPTY)
    return key


def _check_empty(database: Database) -> None:
    with database.read() as connection:
        there = set(inspect(connection).get_table_names()) & set(metadata.tables)
        for name in sorted(there):
            count = select(func.count()).select_from(metadata.tables[name])
            if connection.execute(count).scalar_one():
                raise StoreError(
                    f"there is a registry already: table {name} has rows",
                    place="database",
                    advice=_EMPTY,
                )


def _write_key(folder: Path, key: bytes) -> None:
    path = folder / KEY_FILE
    if not path.exists():
        with atomic.replacing(path, mode=0o600) as file:
            file.write(key)
