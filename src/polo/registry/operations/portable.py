"""Rows as lines of JSON, the same out of either database and into either.

A row is a list in the order of the table's columns; bytes are in base64. What is read is held to
the column's type, so that SQLite, which takes anything, gets nothing that PostgreSQL would refuse.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Column, Integer, LargeBinary, Table

from polo.errors import FormatError

CHUNK = 4 * 2**20
"""Bytes after which the rows of a table go on in another piece."""

_MOST = 2**63 - 1


def columns_of(table: Table) -> list[str]:
    """The names of a table's columns, in the order of a row."""
    return [column.name for column in table.columns]


def chunks(table: Table, rows: Iterable[Any]) -> Iterator[bytes]:
    """The rows of a table, in pieces of about `CHUNK` bytes, each of whole lines."""
    binary = [isinstance(column.type, LargeBinary) for column in table.columns]
    lines: list[bytes] = []
    held = 0
    for row in rows:
        values = [
            _encoded(value) if is_binary else value
            for value, is_binary in zip(row, binary, strict=True)
        ]
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        lines.append(line)
        held += len(line)
        if held >= CHUNK:
            yield b"".join(lines)
            lines, held = [], 0
    if lines:
        yield b"".join(lines)


def rows_in(table: Table, data: bytes, place: str) -> list[dict[str, Any]]:
    """The rows in one piece of a table."""
    columns = list(table.columns)
    rows = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        at = f"{place}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError("is no row", place=at) from error
        if not isinstance(values, list) or len(values) != len(columns):
            raise FormatError(f"is no row of {len(columns)} columns", place=at)
        pairs = zip(columns, values, strict=True)
        rows.append({column.name: _typed(column, value, at) for column, value in pairs})
    return rows


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _typed(column: Column[Any], value: Any, place: str) -> Any:
    if value is None and column.nullable:
        return None
    if isinstance(column.type, LargeBinary):
        return _decoded(value, f"{place} {column.name}")
    if isinstance(column.type, Integer):
        if type(value) is int and abs(value) <= _MOST:
            return value
    elif isinstance(value, str) and "\0" not in value:
        return value
    raise FormatError("is not what this column holds", place=f"{place} {column.name}")


def _decoded(value: Any, place: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise FormatError("is no base64", place=place) from error
