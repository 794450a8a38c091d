"""Samples that are shown: their bytes, the file they travel in, and what a verifier checks.

Every sample is a leaf of a Merkle tree whose root the terms name. A leaf is salted by a secret of
the prover, so that nobody can test whether some sample was among those that were not shown.

Specification: docs/protocol.md, section 16.
"""

import functools
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError
from polo.protocol import merkle
from polo.protocol.digest import SIZE, u64
from polo.protocol.effort import Column, data_root
from polo.protocol.layout import DTYPE_BYTES
from polo.weights import dtypes
from polo.weights.files import open_plain, read_span

if TYPE_CHECKING:
    import torch

Rows = Mapping[str, NDArray[Any]]
"""Samples column by column, one row each."""

_LEAF = b"\x00"


@dataclass(frozen=True)
class SampleOpening:
    """Some samples with what leads from them to the root.

    Attributes:
        indices: Their numbers, distinct and increasing.
        rows: Their content, in that order.
        salts: The salt of each.
        path: The Merkle multiproof.
    """

    indices: NDArray[np.int64]
    rows: Rows
    salts: tuple[bytes, ...]
    path: tuple[bytes, ...]

    @functools.cached_property
    def contents(self) -> dict[int, bytes]:
        """A hash of each sample's content alone, without number and salt.

        The two zeros of floats count as one: no sum tells them apart.
        """
        plain = {name: _one_zero(values) for name, values in self.rows.items()}
        content = (hashlib.sha256(row).digest() for row in row_bytes(plain))
        return dict(zip(self.indices.tolist(), content, strict=True))


def _one_zero(values: NDArray[Any]) -> NDArray[Any]:
    return values + values.dtype.type(0) if values.dtype.kind == "f" else values


def row_bytes(rows: Rows) -> Iterator[memoryview]:
    """The canonical bytes of each row: its columns in the order of their names, little-endian."""
    count = len(next(iter(rows.values())))
    # One copy for all columns; a row's bytes then lie together.
    parts = [_bytes(rows[name]).reshape(count, -1) for name in sorted(rows)]
    joined = np.ascontiguousarray(np.concatenate(parts, axis=1))
    data, size = joined.data.cast("B"), joined.shape[1]
    return (data[at : at + size] for at in range(0, count * size, size))


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8)


def leaf(index: int, salt: bytes, row: bytes | memoryview) -> bytes:
    """The leaf of a sample."""
    state = hashlib.sha256(_LEAF + u64(index) + salt)
    state.update(row)
    return state.digest()


def tensors(rows: Rows) -> dict[str, "torch.Tensor"]:
    """Rows as a batch of tensors.

    They are copied into memory that torch allocates: how an array happens to be aligned shows in
    the last bits of some sums.
    """
    import torch

    return {name: torch.from_numpy(values).clone() for name, values in rows.items()}


def check_opening(
    opening: SampleOpening,
    indices: NDArray[np.int64],
    root: bytes,
    samples: int,
    columns: tuple[Column, ...],
    *,
    place: str,
) -> None:
    """Refuse samples that are not the ones asked for, or do not lead to the root.

    Args:
        opening: What was shown.
        indices: The samples that were asked for.
        root: The root of the data that the terms name.
        samples: Number of samples that the recipe declares.
        columns: What a sample consists of, according to the task.
        place: What to name in errors.
    """
    if not np.array_equal(opening.indices, indices):
        raise FormatError("these are other samples than those of the steps", place=place)
    if columns_of(opening.rows) != columns or len(opening.salts) != len(indices):
        raise FormatError("the samples do not have the task's columns", place=place)
    for column in columns:
        values = opening.rows[column.name]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise FormatError(f"column {column.name} holds what is no number", place=place)
        if column.dtype == "BOOL" and (opening.rows[column.name].view(np.uint8) > 1).any():
            raise FormatError(f"column {column.name} holds bytes that are no BOOL", place=place)
    numbered = zip(indices.tolist(), opening.salts, row_bytes(opening.rows), strict=True)
    leaves = {index: leaf(index, salt, row) for index, salt, row in numbered}
    tree = merkle.root_from_multiproof(samples, leaves, opening.path, place=place)
    if data_root(columns, samples, tree) != root:
        raise FormatError(
            "the samples that are shown do not lead to the root of the data in the terms",
            place=place,
        )


def columns_of(rows: Rows) -> tuple[Column, ...]:
    """What the samples in some rows consist of; arrays of other types are refused by name."""
    return tuple(_column(name, rows[name]) for name in sorted(rows))


def _column(name: str, values: NDArray[Any]) -> Column:
    place = f"column {str(name)[:64]}"
    dtype = dtypes.name_of_numpy(values.dtype.newbyteorder("="), place=place)
    shape = list(values.shape[1:])
    return Column.from_json({"name": name, "dtype": dtype, "shape": shape}, place)


def encode_opening(opening: SampleOpening) -> bytes:
    """An opening as a file."""
    columns, count = columns_of(opening.rows), len(opening.indices)
    header = _header(columns, count, len(opening.path))
    body = (_bytes(opening.rows[column.name]).tobytes() for column in columns)
    return b"".join([header, *body, *opening.salts, *opening.path])


def load_opening(
    path: Path,
    columns: tuple[Column, ...],
    indices: NDArray[np.int64],
    *,
    samples: int,
    place: str,
) -> SampleOpening:
    """Read the opening of exactly these samples.

    Size and header of the file follow from the arguments; a file that differs is refused before
    anything in it is used, or any memory taken for it.
    """
    hashes = merkle.multiproof_length(samples, indices.tolist())
    header = _header(columns, len(indices), hashes)
    width = sum(column.size for column in columns) + SIZE
    size = len(header) + width * len(indices) + SIZE * hashes
    with open_plain(path) as file:
        if (there := os.fstat(file.fileno()).st_size) != size:
            detail = f"has {there} bytes; the samples of these steps take {size}"
            raise FormatError(detail, place=place)
        data = read_span(file, 0, size, place=place)
    if not data.startswith(header):
        raise FormatError("the header of the samples is not the one it must be", place=place)
    rows, at = {}, len(header)
    for column in columns:
        rows[column.name] = _array(data, at, column, len(indices))
        at += column.size * len(indices)
    found = [data[start : start + SIZE] for start in range(at, size, SIZE)]
    salts, proof = found[: len(indices)], found[len(indices) :]
    return SampleOpening(indices, rows, tuple(salts), tuple(proof))


def _array(data: bytes, at: int, column: Column, count: int) -> NDArray[Any]:
    kind = dtypes.numpy_dtype(column.dtype)
    flat = np.frombuffer(data, dtype=kind, count=count * math.prod(column.shape), offset=at)
    return flat.reshape(count, *column.shape)


def _header(columns: Sequence[Column], count: int, hashes: int) -> bytes:
    """The one header that an opening of so many samples has."""
    shapes: dict[str, tuple[str, list[int]]] = {
        f"columns/{column.name}": (column.dtype, [count, *column.shape]) for column in columns
    }
    shapes |= {"salts": ("U8", [count, SIZE]), "path": ("U8", [hashes, SIZE])}
    entries, end = {}, 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
