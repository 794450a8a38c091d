"""Columns of plain values as PostgreSQL's arrays, in its binary form.

psycopg looks at every item of a list several times to find out what it holds. Here that is known,
and a group of commitments costs a good part less.
"""

import struct
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_NUMBER = struct.Struct("!iq")
_NOTHING = _LENGTH.pack(-1)


class Octets(list[Any]):
    """A column of bytes."""


class Words(list[Any]):
    """A column of texts."""


class Numbers(list[Any]):
    """A column of whole numbers."""


def register() -> None:
    """Let psycopg know them."""
    for kind, dumper in ((Octets, _Octets), (Words, _Words), (Numbers, _Numbers)):
        psycopg.adapters.register_dumper(kind, dumper)


class _Column(Dumper):
    """One dimension, counted from 1; nulls have the length -1."""

    format = Format.BINARY
    item = 0

    def dump(self, obj: Any) -> bytes:
        """See `Dumper`."""
        head = _HEAD.pack(1, None in obj, self.item, len(obj), 1)
        return head + b"".join([_NOTHING if it is None else self.one(it) for it in obj])

    def one(self, item: Any) -> bytes:
        """An item, behind its length."""
        raise NotImplementedError


class _Octets(_Column):
    oid, item = 1001, 17

    def one(self, item: Any) -> bytes:
        data = bytes(item)
        return _LENGTH.pack(len(data)) + data


class _Words(_Column):
    oid, item = 1009, 25

    def one(self, item: Any) -> bytes:
        data: bytes = item.encode()
        return _LENGTH.pack(len(data)) + data


class _Numbers(_Column):
    oid, item = 1016, 20

    def one(self, item: Any) -> bytes:
        return _NUMBER.pack(8, item)
