"""The database's shape, by migration, is the one that the code has in mind."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from polo.errors import FormatError, StoreError
from polo.registry import migrations
from polo.registry.context import Registry
from polo.registry.database import Database
from polo.registry.schema import metadata
from polo.registry.settings import Settings


@pytest.fixture
def database(empty_url):
    opened = Database(empty_url)
    yield opened
    opened.close()


def tables(database):
    with database.read() as connection:
        return set(inspect(connection).get_table_names())


def test_the_migrations_make_exactly_the_schema(database):
    migrations.upgrade(database)
    with database.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert tables(database) == {*metadata.tables, "alembic_version"}


def test_they_go_up_and_down_and_up_again(database):
    assert migrations.current(database) is None
    migrations.upgrade(database)
    migrations.upgrade(database)
    assert migrations.current(database) == migrations.latest()
    migrations.downgrade(database)
    assert tables(database) == {"alembic_version"}
    assert migrations.current(database) is None
    migrations.upgrade(database)
    assert tables(database) == {*metadata.tables, "alembic_version"}


def test_move_goes_either_way(database):
    migrations.move(database, "head")
    migrations.move(database, "head")
    assert migrations.current(database) == migrations.latest()
    migrations.move(database, "base")
    assert migrations.current(database) is None
    with pytest.raises(FormatError, match="no revision"):
        migrations.move(database, "0815")


def test_a_migration_that_fails_changes_nothing(database):
    with database.begin() as connection:
        metadata.tables["tokens"].create(connection)
    with pytest.raises(Exception, match="tokens"):
        migrations.upgrade(database)
    assert tables(database) - {"alembic_version"} == {"tokens"}


def test_an_unmigrated_database_is_refused(empty_url, tmp_path):
    settings = Settings(data=tmp_path / "elsewhere", database=empty_url)
    with pytest.raises(StoreError, match="at nothing") as refused:
        Registry.open(settings)
    assert "polo registry migrate" in refused.value.advice
    Registry.open(settings, migrate=True).close()
    Registry.open(settings).close()


def test_the_embedded_database_migrates_itself(tmp_path):
    settings = Settings(data=tmp_path)
    assert settings.embedded
    Registry.open(settings).close()
