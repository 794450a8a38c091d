"""The public record of the data that a model is trained on.

Specification: docs/protocol.md, section 16.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Self

from polo.errors import FormatError, LimitError
from polo.protocol import canonical
from polo.protocol.digest import tagged, u64
from polo.protocol.fields import Bytes, Choice, Integer, ListOf, Nested, Record, Text, of
from polo.protocol.layout import DTYPE_BYTES

MAX_SAMPLES = 2**25
"""Most samples: the order of a pass sorts as many words."""

MAX_SAMPLE_BYTES = 2**30

COLUMN_DTYPES = (
    "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64",
)  # fmt: skip
"""Types that numpy, torch and safetensors all have."""


@dataclass(frozen=True)
class Column(Record):
    """One part of a sample, such as the image or the label.

    Attributes:
        name: What the training step finds it by.
        dtype: Its element type.
        shape: Its shape in one sample; empty for a single number.
    """

    name: str = of(Text(64, r"[A-Za-z0-9][A-Za-z0-9._-]*"))
    dtype: str = of(Choice(COLUMN_DTYPES))
    shape: tuple[int, ...] = of(ListOf(Integer(1, MAX_SAMPLE_BYTES), 16))

    @property
    def size(self) -> int:
        """Bytes in one sample."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class DataRecord(Record):
    """What an issuer is told about the data: what a sample is, how many there are, their root.

    Attributes:
        root: The salted root over all samples, which the terms name.
        samples: How many there are.
        columns: What one sample consists of, sorted by name.
    """

    FORMAT = "polo/data/1"

    root: bytes = of(Bytes(32))
    samples: int = of(Integer(1, MAX_SAMPLES))
    columns: tuple[Column, ...] = of(ListOf(Nested(Column), 64))

    @classmethod
    def from_json(cls, value: object, place: str) -> Self:
        """See `Record`; names, order and size of the columns are checked too."""
        record = super().from_json(value, place)
        check_columns(record.columns, place)
        return record


def check_columns(columns: tuple[Column, ...], place: str) -> None:
    """Refuse no columns, unsorted or repeated names, and samples of absurd size."""
    if not columns:
        raise FormatError("a sample has no columns", place=place)
    for one, other in itertools.pairwise(columns):
        if other.name.encode() <= one.name.encode():
            raise FormatError(f"columns are not sorted: {other.name!r}", place=place)
    size = sum(column.size for column in columns)
    if size > MAX_SAMPLE_BYTES:
        raise LimitError(f"{size} bytes a sample; at most {MAX_SAMPLE_BYTES}", place=place)


@functools.cache
def columns_digest(columns: tuple[Column, ...]) -> bytes:
    """What the root binds of the columns."""
    return tagged("polo/columns/1", canonical.encode([item.to_json() for item in columns]))


def data_root(columns: tuple[Column, ...], samples: int, tree: bytes) -> bytes:
    """The root that terms name, from the root of the tree over the samples."""
    return tagged("polo/data/1", columns_digest(columns), u64(samples), tree)
