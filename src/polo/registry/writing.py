"""Adding many rows, and rows that may be there already, the same way in either database."""

import functools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.dialects import postgresql, sqlite

Rows = Sequence[dict[str, Any]]


def add_all(connection: Connection, table: Table, rows: Rows) -> None:
    """Add rows of plain values, all with the same columns in the same order.

    They go to the driver as they are: what SQLAlchemy does to each row takes as long as the
    database does.
    """
    if rows:
        statement = _insert(connection.dialect, table, tuple(rows[0]))
        connection.exec_driver_sql(statement, [tuple(row.values()) for row in rows])


@functools.lru_cache(maxsize=64)
def _insert(dialect: Dialect, table: Table, columns: tuple[str, ...]) -> str:
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(table.c[name]) for name in columns)
    places = ", ".join(["?" if dialect.name == "sqlite" else "%s"] * len(columns))
    return f"INSERT INTO {quoted.format_table(table)} ({names}) VALUES ({places})"  # noqa: S608


def insert_new(connection: Connection, table: Table, rows: Rows) -> set[tuple[Any, ...]]:
    """Add rows; those whose key is taken stay as they are. The keys of those that are new."""
    kind = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    keys = tuple(table.primary_key.columns)
    adding = kind(table).on_conflict_do_nothing().returning(*keys)
    return {tuple(row) for row in connection.execute(adding, list(rows))}
