"""Openings as safetensors files: `leaves` (indices), `chunks` (bytes), `path` (hashes)."""

import struct
from pathlib import Path
from typing import Any

from polo.errors import FormatError
from polo.protocol import merkle
from polo.protocol.commitment import Opening
from polo.protocol.digest import SIZE
from polo.protocol.layout import Layout, Leaf
from polo.weights.files import encoded_header, open_plain


def encode(opening: Opening) -> bytes:
    """An opening as a file."""
    indices = sorted(opening.chunks)
    body = b"".join(struct.pack("<q", index) for index in indices)
    body += b"".join(opening.chunks[index] for index in indices) + b"".join(opening.path)
    data_size = sum(len(opening.chunks[index]) for index in indices)
    return _header(len(indices), data_size, len(opening.path)) + body


def load(path: Path, layout: Layout, where: dict[int, Leaf], *, place: str) -> Opening:
    """Read the opening of exactly the leaves in `where`; see `decode`."""
    shape = _shape(layout, where)
    with open_plain(path) as file:
        data = file.read(shape[1] + 1)
    return _decoded(data, where, shape, place)


def decode(data: bytes, layout: Layout, where: dict[int, Leaf], *, place: str) -> Opening:
    """The opening of exactly the leaves in `where`.

    Everything about the file follows from the layout and the leaves, its size and its header
    too; a file that differs is refused before anything in it is used.
    """
    return _decoded(data, where, _shape(layout, where), place)


def _decoded(data: bytes, where: dict[int, Leaf], shape: tuple[bytes, int], place: str) -> Opening:
    header, size = shape
    if len(data) != size or not data.startswith(header):
        raise FormatError("the opening does not have the size or header it must", place=place)
    at = len(header)
    indices = [index for (index,) in struct.iter_unpack("<q", data[at : at + 8 * len(where)])]
    if indices != list(where):
        raise FormatError("the opening shows other leaves than the mark needs", place=place)
    at += 8 * len(where)
    # Chunks are most of it, and are not copied out of it.
    chunks, view = {}, memoryview(data)
    for index, leaf in where.items():
        chunks[index] = view[at : at + leaf.length]
        at += leaf.length
    return Opening(chunks, tuple(data[i : i + SIZE] for i in range(at, size, SIZE)))


def _shape(layout: Layout, where: dict[int, Leaf]) -> tuple[bytes, int]:
    """The header that the opening of these leaves has, and its size."""
    data_size = sum(leaf.length for leaf in where.values())
    hashes = merkle.multiproof_length(layout.leaf_count, list(where))
    header = _header(len(where), data_size, hashes)
    return header, len(header) + 8 * len(where) + data_size + SIZE * hashes


def _header(leaves: int, data_size: int, hashes: int) -> bytes:
    ends = (8 * leaves, 8 * leaves + data_size, 8 * leaves + data_size + SIZE * hashes)
    entries: dict[str, Any] = {
        "leaves": {"dtype": "I64", "shape": [leaves], "data_offsets": [0, ends[0]]},
        "chunks": {"dtype": "U8", "shape": [data_size], "data_offsets": [ends[0], ends[1]]},
        "path": {"dtype": "U8", "shape": [hashes, SIZE], "data_offsets": [ends[1], ends[2]]},
    }
    return encoded_header(entries)
