"""Writing many rows at once, the same way in either database.

Values go to the driver as they are: what SQLAlchemy does to each row takes as long as the database
does. SQLite's driver is fast with one row after the other; PostgreSQL gets a column at a time, as
an array, so that one statement, whose text is always the same, takes any number of rows.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, Integer, LargeBinary, String, Table
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import OperationalError

from polo.registry.columns import Numbers, Octets, Words

Rows = Sequence[dict[str, Any]]

_TOGETHER = 128
"""Rows of one statement, where its text depends on how many there are."""

_ARRAYS = (
    (LargeBinary, "bytea[]", Octets),
    (String, "text[]", Words),
    (Integer, "bigint[]", Numbers),
)


@contextmanager
def together(connection: Connection) -> Iterator[None]:
    """Wait once for all that is written inside, not for each statement; nothing is read there."""
    driver = connection.connection.driver_connection
    if connection.dialect.name == "sqlite" or driver is None:
        yield
        return
    failed = connection.dialect.loaded_dbapi.OperationalError
    try:
        with driver.pipeline():
            yield
    except failed as error:
        # What the driver says at the end of it all, the callers know in SQLAlchemy's words.
        raise OperationalError(None, None, error) from error


def add_all(connection: Connection, table: Table, rows: Rows) -> None:
    """Add rows of plain values, all with the same columns in the same order."""
    if rows:
        _each(connection, _insert(connection.dialect, table, tuple(rows[0])), table, rows)


def change_all(connection: Connection, table: Table, key: str, rows: Rows) -> None:
    """Change the rows with these keys.

    Args:
        connection: A write transaction.
        table: The table.
        key: A column; the last one of each row, since SQLite takes them in this order.
        rows: New values, all with the same columns in the same order.
    """
    if rows:
        _each(connection, _update(connection.dialect, table, key, tuple(rows[0])), table, rows)


def insert_new(connection: Connection, table: Table, rows: Rows) -> set[tuple[Any, ...]]:
    """Add rows; those whose key is taken stay as they are. The keys of those that are new."""
    found: set[tuple[Any, ...]] = set()
    for at in range(0, len(rows), _TOGETHER):
        part = rows[at : at + _TOGETHER]
        statement = _insert_new(connection.dialect, table, tuple(part[0]), len(part))
        if connection.dialect.name == "sqlite":
            given = tuple(value for row in part for value in row.values())
            new = connection.exec_driver_sql(statement, given)
        else:
            new = by_columns(connection, statement, table, part)
        found.update(tuple(row) for row in new)
    return found


def by_columns(
    connection: Connection, statement: str, table: Table, rows: Rows
) -> CursorResult[Any]:
    """Run a statement of PostgreSQL's that takes an array for each column."""
    kinds = _kinds(table, tuple(rows[0]))
    columns = zip(*(row.values() for row in rows), strict=True)
    given = tuple(kind(column) for kind, column in zip(kinds, columns, strict=True))
    return connection.exec_driver_sql(statement, given)


@functools.lru_cache(maxsize=256)
def arrays(dialect: Dialect, table: Table, columns: tuple[str, ...]) -> str:
    """Rows out of one array for each column, for PostgreSQL: `unnest(…) AS given(…)`."""
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(table.c[name]) for name in columns)
    kinds = (
        next(kind for base, kind, _ in _ARRAYS if isinstance(table.c[name].type, base))
        for name in columns
    )
    return f"unnest({', '.join(f'%b::{kind}' for kind in kinds)}) AS given({names})"


@functools.lru_cache(maxsize=256)
def _kinds(table: Table, columns: tuple[str, ...]) -> tuple[type[list[Any]], ...]:
    return tuple(
        next(kind for base, _, kind in _ARRAYS if isinstance(table.c[name].type, base))
        for name in columns
    )


def _each(connection: Connection, statement: str, table: Table, rows: Rows) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(statement, [tuple(row.values()) for row in rows])
    else:
        by_columns(connection, statement, table, rows)


@functools.lru_cache(maxsize=64)
def _insert(dialect: Dialect, table: Table, columns: tuple[str, ...]) -> str:
    begun, names = _begun(dialect, table, columns)
    if dialect.name == "sqlite":
        return f"{begun} VALUES {_places(len(columns), 1)}"
    return f"{begun} SELECT {names} FROM {arrays(dialect, table, columns)}"  # noqa: S608


@functools.lru_cache(maxsize=512)
def _insert_new(dialect: Dialect, table: Table, columns: tuple[str, ...], count: int) -> str:
    begun, names = _begun(dialect, table, columns)
    quoted = dialect.identifier_preparer
    keys = ", ".join(quoted.format_column(column) for column in table.primary_key.columns)
    given = f"SELECT {names} FROM {arrays(dialect, table, columns)}"  # noqa: S608
    if dialect.name == "sqlite":
        given = f"VALUES {_places(len(columns), count)}"
    return f"{begun} {given} ON CONFLICT DO NOTHING RETURNING {keys}"


@functools.lru_cache(maxsize=16)
def _update(dialect: Dialect, table: Table, key: str, columns: tuple[str, ...]) -> str:
    quoted = dialect.identifier_preparer
    name, one = quoted.format_table(table), quoted.format_column(table.c[key])
    others = [quoted.format_column(table.c[it]) for it in columns if it != key]
    if dialect.name == "sqlite":
        changes = ", ".join(f"{it} = ?" for it in others)
        return f"UPDATE {name} SET {changes} WHERE {one} = ?"  # noqa: S608
    changes = ", ".join(f"{it} = given.{it}" for it in others)
    given = arrays(dialect, table, columns)
    return f"UPDATE {name} SET {changes} FROM {given} WHERE {name}.{one} = given.{one}"  # noqa: S608


def _begun(dialect: Dialect, table: Table, columns: tuple[str, ...]) -> tuple[str, str]:
    """How an insert begins, and the names of its columns."""
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(table.c[name]) for name in columns)
    return f"INSERT INTO {quoted.format_table(table)} ({names})", names


def _places(width: int, count: int) -> str:
    return ", ".join([f"({', '.join('?' * width)})"] * count)
