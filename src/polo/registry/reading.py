"""Reading many rows by their keys at once, by an index in either database."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table

_TOGETHER = 128


def rows_at(
    connection: Connection,
    table: Table,
    keys: tuple[str, str],
    columns: tuple[str, ...],
    wanted: Sequence[tuple[Any, Any]],
) -> Iterator[Any]:
    """Some columns of the rows with these pairs of keys.

    SQLite reads the whole table for `(a, b) IN (…)`, and uses the index for `a = … AND b = …`.

    Args:
        connection: A transaction.
        table: The table.
        keys: Two columns that have an index together.
        columns: What to read.
        wanted: Values of the two columns.
    """
    for at in range(0, len(wanted), _TOGETHER):
        part = wanted[at : at + _TOGETHER]
        statement = _select(connection.dialect, table, keys, columns, len(part))
        values = tuple(value for pair in part for value in pair)
        yield from connection.exec_driver_sql(statement, values)


@functools.lru_cache(maxsize=512)
def _select(
    dialect: Dialect, table: Table, keys: tuple[str, str], columns: tuple[str, ...], count: int
) -> str:
    quoted = dialect.identifier_preparer
    place = "?" if dialect.name == "sqlite" else "%s"
    one, two = (quoted.format_column(table.c[name]) for name in keys)
    names = ", ".join(quoted.format_column(table.c[name]) for name in columns)
    each = f"({one} = {place} AND {two} = {place})"
    where = " OR ".join([each] * count)
    return f"SELECT {names} FROM {quoted.format_table(table)} WHERE {where}"  # noqa: S608
