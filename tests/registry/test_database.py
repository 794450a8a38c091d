"""Transactions: what is read-only, what waits for what, what survives."""

import sqlite3
import threading

import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import func, insert, select, text

from polo.errors import FormatError
from polo.registry.database import Database
from polo.registry.schema import events

ROW = {"time": 1, "actor": "a", "action": "b", "subject": "c", "detail": ""}


def count(registry):
    with registry.database.read() as connection:
        return connection.execute(select(func.count()).select_from(events)).scalar()


def test_an_error_takes_everything_back(registry):
    def fail():
        with registry.database.begin() as connection:
            connection.execute(insert(events).values(ROW))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert count(registry) == 0


def test_reading_transactions_cannot_write(registry):
    with (
        pytest.raises(sqlalchemy.exc.DBAPIError, match=r"(?i)read-?only"),
        registry.database.read() as connection,
    ):
        connection.execute(insert(events).values(ROW))
    with registry.database.begin() as connection:  # The same connection may write again.
        connection.execute(insert(events).values(ROW))
    assert count(registry) == 1


def test_a_lock_lets_one_in_at_a_time(registry):
    inside, most = 0, 0
    guard = threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(5):
            with registry.database.begin() as connection:
                registry.database.lock(connection, "gate")
                with guard:
                    inside += 1
                    most = max(most, inside)
                connection.execute(insert(events).values(ROW))
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert count(registry) == 20


def test_writers_that_read_first_do_not_fail(registry):
    """Of two processes, too, which do not know of each other's turns."""
    failures = []
    other = Database(registry.settings.database)

    def work(database):
        try:
            for _ in range(10):
                with database.begin() as connection:
                    connection.execute(select(func.count()).select_from(events)).scalar()
                    connection.execute(insert(events).values(ROW))
        except sqlalchemy.exc.DBAPIError as error:
            failures.append(error)

    used = [registry.database, other] * 2
    threads = [threading.Thread(target=work, args=(database,)) for database in used]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert failures == []
    assert count(registry) == 40


def test_sqlite_is_durable_and_strict(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/x.sqlite")
    with database.begin() as connection:
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    database.close()
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_statements_that_fail_show_no_parameters(registry):
    with (
        pytest.raises(sqlalchemy.exc.DBAPIError) as failed,
        registry.database.begin() as connection,
    ):
        connection.execute(insert(events), [{**ROW, "id": 1, "detail": "a secret"}] * 2)
    assert "a secret" not in str(failed.value)


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused(url):
    with pytest.raises(FormatError):
        Database(url)


def test_a_connection_that_is_in_use_is_closed_when_it_is_given_back(registry):
    database = registry.database
    with database.read() as connection:
        used = connection.connection.dbapi_connection
        database.close()
        assert connection.execute(text("select 1")).scalar() == 1
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        used.cursor().execute("select 1")
