"""The registry as one object: what every route, job and command works with."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, select

from polo.errors import StoreError
from polo.registry import migrations
from polo.registry.database import Database
from polo.registry.limits import Limits
from polo.registry.observing import Metrics
from polo.registry.schema import log_heads
from polo.registry.settings import Settings
from polo.registry.vault import Vault

if TYPE_CHECKING:
    from polo.registry.commitments.sequencer import Sequencer
    from polo.registry.jobs import Jobs
    from polo.registry.objects import Objects
    from polo.registry.tasks.service import Tasks


def wall_clock() -> int:
    """Whole seconds since 1970."""
    return int(time.time())


@dataclass
class Registry:
    """One registry, open.

    Attributes:
        settings: What the operator set.
        database: Its database, at the latest migration.
        vault: Its keys.
        objects: Its files.
        jobs: Its long work.
        sequencer: Puts commitments into the log, many at once.
        clock: Gives whole seconds since 1970.
        limits: What callers have left.
        metrics: Figures for the operator.
        purged: When old request nonces were last dropped.
    """

    settings: Settings
    database: Database
    vault: Vault
    objects: "Objects"
    jobs: "Jobs"
    sequencer: "Sequencer"
    clock: Callable[[], int] = wall_clock
    limits: Limits = field(init=False)
    metrics: Metrics = field(default_factory=Metrics)
    purged: int = 0

    def __post_init__(self) -> None:
        self.limits = Limits(self.settings.rate, self.settings.guest_rate)

    @cached_property
    def tasks(self) -> "Tasks":
        """The tasks that are offered."""
        from polo.registry.tasks.service import Tasks

        tested = self.settings.verify_accuracy != "none"
        return Tasks(self.settings.data, self.settings.tasks, tested=tested)

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        migrate: bool = False,
        clock: Callable[[], int] = wall_clock,
    ) -> Self:
        """Open everything that the settings name.

        Args:
            settings: The settings.
            migrate: Bring the database up to date first; the embedded one always is.
            clock: Gives whole seconds since 1970.
        """
        # These stand above this module: their parts work with a Registry themselves.
        from polo.registry.challenges.service import draw
        from polo.registry.commitments.sequencer import Sequencer
        from polo.registry.jobs import Jobs
        from polo.registry.objects import Objects

        vault = Vault.in_folder(settings.data)
        database = Database(settings.database)
        try:
            _migrated(database, migrate or settings.embedded)
            with database.begin() as connection:
                database.lock(connection, "keys")
                vault.prepare(connection, clock())
                _same_log(connection, settings.origin)
            sequencer = Sequencer(database, vault, origin=settings.origin, clock=clock, draw=draw)
            objects, jobs = Objects(settings.objects), Jobs(settings.jobs, clock)
            return cls(settings, database, vault, objects, jobs, sequencer, clock)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Finish what is waiting, and close what `open` opened."""
        self.sequencer.close()
        self.database.close()


def _migrated(database: Database, migrate: bool) -> None:
    if migrate:
        migrations.upgrade(database)
    elif (found := migrations.current(database)) != (wanted := migrations.latest()):
        raise StoreError(
            f"the database is at {found or 'nothing'}, and this version needs {wanted}",
            place="database",
            advice="Make a backup, then: polo registry migrate (or serve --migrate).",
        )


def _same_log(connection: Connection, origin: str) -> None:
    """Refuse another name for a log that has begun: others know it by the one it has."""
    newest = select(log_heads.c.note).order_by(log_heads.c.size.desc()).limit(1)
    note = connection.execute(newest).scalar()
    if note is not None and (name := note.partition("\n")[0]) != origin:
        raise StoreError(
            f"the log in this database is {name!r}, not {origin!r}",
            place="setting origin",
            advice=f"Give what the registry was first started with, or --set origin={name}; "
            "public_url may change, a log's name never.",
        )
