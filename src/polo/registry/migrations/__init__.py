"""The database's shape, step by step, and how to get from one to the next."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from polo.errors import FormatError
from polo.registry.database import Database
from polo.registry.schema import metadata

Steps = Callable[[ScriptDirectory, str, Any], Iterable[Any]]


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the database up to this revision; whoever else tries at the same time waits."""
    _migrate(database, lambda script, found, _: script._upgrade_revs(revision, found))


def downgrade(database: Database, revision: str = "base") -> None:
    """Take the database back to this revision; what later ones added is lost."""
    _migrate(database, lambda script, found, _: script._downgrade_revs(revision, found))


def move(database: Database, revision: str) -> None:
    """Bring the database to this revision, up or down."""
    found = current(database)
    script = _script(_config())
    wanted = script.as_revision_number(revision)
    known = {step.revision for step in script.walk_revisions()}
    if revision not in ("head", "base") and wanted not in known:
        raise FormatError(f"there is no revision {revision[:40]!r}", place="database")
    below = {step.revision for step in script.iterate_revisions(found, "base")} if found else set()
    if wanted is None or (wanted in below and wanted != found):
        downgrade(database, revision)
    else:
        upgrade(database, revision)


def current(database: Database) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


@cache
def latest() -> str:
    """The revision that this version of the registry works with."""
    head = _script(_config()).get_current_head()
    assert head is not None
    return head


def _migrate(database: Database, steps: Steps) -> None:
    """All steps in one transaction: a migration happens whole, or not at all."""
    config = _config()
    script = _script(config)

    def chosen(found: Any, context: MigrationContext) -> Any:
        return steps(script, found, context)

    with (
        database.begin() as connection,
        EnvironmentContext(config, script, fn=chosen) as environment,
    ):
        database.lock(connection, "migrations")
        environment.configure(
            connection=connection,
            target_metadata=metadata,
            transactional_ddl=False,  # `begin` is around all of it already.
            render_as_batch=True,
        )
        environment.run_migrations()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "polo.registry:migrations")
    return config


def _script(config: Config) -> ScriptDirectory:
    return ScriptDirectory.from_config(config)
