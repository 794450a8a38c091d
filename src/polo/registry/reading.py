"""Reading many rows by their keys at once, by an index in either database."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table

from polo.registry.writing import arrays, by_columns

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
    PostgreSQL reads it for a join that it planned while the table was small; a lateral subquery
    that it may not take apart it runs for each pair, by the index.

    Args:
        connection: A transaction.
        table: The table.
        keys: Two columns that have an index together.
        columns: What to read.
        wanted: Values of the two columns, each pair once.
    """
    for at in range(0, len(wanted), _TOGETHER):
        part = wanted[at : at + _TOGETHER]
        if connection.dialect.name == "sqlite":
            statement = _select(connection.dialect, table, keys, columns, len(part))
            values = tuple(value for pair in part for value in pair)
            yield from connection.exec_driver_sql(statement, values)
        else:
            pairs = [dict(zip(keys, pair, strict=True)) for pair in part]
            joined = _joined(connection.dialect, table, keys, columns)
            yield from by_columns(connection, joined, table, pairs)


@functools.lru_cache(maxsize=512)
def _select(
    dialect: Dialect, table: Table, keys: tuple[str, str], columns: tuple[str, ...], count: int
) -> str:
    quoted = dialect.identifier_preparer
    one, two = (quoted.format_column(table.c[name]) for name in keys)
    names = ", ".join(quoted.format_column(table.c[name]) for name in columns)
    where = " OR ".join([f"({one} = ? AND {two} = ?)"] * count)
    return f"SELECT {names} FROM {quoted.format_table(table)} WHERE {where}"  # noqa: S608


@functools.lru_cache(maxsize=64)
def _joined(dialect: Dialect, table: Table, keys: tuple[str, str], columns: tuple[str, ...]) -> str:
    quoted = dialect.identifier_preparer
    name = quoted.format_table(table)
    one, two = (quoted.format_column(table.c[key]) for key in keys)
    names = ", ".join(quoted.format_column(table.c[it]) for it in columns)
    same = f"{name}.{one} = given.{one} AND {name}.{two} = given.{two}"
    each = f"SELECT {names} FROM {name} WHERE {same} OFFSET 0"  # noqa: S608
    return f"SELECT found.* FROM {arrays(dialect, table, keys)}, LATERAL ({each}) AS found"  # noqa: S608
