"""Lossless deltas: XOR with the next kept checkpoint, byte shuffle, zstandard.

XOR undoes itself, so a delta between W_a and W_b leads from either to the other. The newest
checkpoint is stored whole and each older one as its delta to the next newer, because a verifier
walks from the newest to the oldest. A float difference would not be bit-exact and would break
the root.

Specification: docs/protocol.md, section 12.3.
"""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from polo.errors import FormatError, MissingError
from polo.protocol.layout import DTYPE_BYTES, Layout
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import header_of, open_plain

PIECE_BYTES = 2**20
_LEVEL = 3
_HEADER_BYTES = 264


def write_delta(older: Checkpoint, newer: Checkpoint, file: BinaryIO) -> None:
    """Write the delta that leads from `newer` to `older`, as a safetensors file of pieces."""
    compressor = _zstandard().ZstdCompressor(level=_LEVEL)
    lengths: list[int] = []
    # Header and lengths have a known size, so the pieces go to their place as they are made.
    file.seek(_HEADER_BYTES + 4 * sum(1 for _ in _pieces(older.layout)))
    for tensor, start, stop, size in _pieces(older.layout):
        one, other = older.read(tensor, start, stop), newer.read(tensor, start, stop)
        lengths.append(file.write(compressor.compress(_mix(one, other, size))))
    file.seek(0)
    file.write(_header(len(lengths), sum(lengths)))
    file.write(struct.pack(f"<{len(lengths)}I", *lengths))


def apply_delta(path: Path, newer: Checkpoint, out: Callable[[bytes], Any], *, place: str) -> None:
    """Write the older checkpoint, as a canonical safetensors file, from the newer and a delta."""
    zstandard = _zstandard()
    decompressor = zstandard.ZstdDecompressor(max_window_size=2 * PIECE_BYTES)
    layout = newer.layout
    out(header_of(layout))
    with open_plain(path) as file:
        lengths = _read_lengths(file.read, os.fstat(file.fileno()).st_size, layout, place)
        for length, (tensor, start, stop, size) in zip(lengths, _pieces(layout), strict=True):
            piece = file.read(min(length, 2 * PIECE_BYTES))
            try:
                if zstandard.frame_content_size(piece) != stop - start:
                    raise FormatError("a piece declares another size", place=place)
                shuffled = decompressor.decompress(piece, allow_extra_data=False)
            except zstandard.ZstdError as error:
                raise FormatError(f"a piece cannot be unpacked: {error}", place=place) from error
            out(_unmix(shuffled, newer.read(tensor, start, stop), size))


def _read_lengths(
    read: Callable[[int], bytes], available: int, layout: Layout, place: str
) -> tuple[int, ...]:
    count = sum(1 for _ in _pieces(layout))
    body = available - _HEADER_BYTES - 4 * count
    header = _header(count, max(0, body))
    if body < 0 or read(len(header)) != header:
        raise FormatError("the delta does not have the header it must", place=place)
    lengths: tuple[int, ...] = struct.unpack(f"<{count}I", read(4 * count))
    if sum(lengths) != body:
        raise FormatError("the pieces of the delta do not fill the file", place=place)
    return lengths


def _pieces(layout: Layout) -> Iterator[tuple[int, int, int, int]]:
    for at, tensor in enumerate(layout.tensors):
        for start in range(0, tensor.size, PIECE_BYTES):
            yield at, start, min(start + PIECE_BYTES, tensor.size), DTYPE_BYTES[tensor.dtype]


def _mix(one: bytes | memoryview, other: bytes | memoryview, size: int) -> bytes:
    mixed = np.frombuffer(one, dtype=np.uint8) ^ np.frombuffer(other, dtype=np.uint8)
    return np.ascontiguousarray(mixed.reshape(-1, size).T).tobytes()


def _unmix(shuffled: bytes, other: bytes | memoryview, size: int) -> bytes:
    mixed = np.frombuffer(shuffled, dtype=np.uint8).reshape(size, -1).T.reshape(-1)
    return (mixed ^ np.frombuffer(other, dtype=np.uint8)).tobytes()


def _header(count: int, total: int) -> bytes:
    entries = {
        "lengths": {"dtype": "U32", "shape": [count], "data_offsets": [0, 4 * count]},
        "pieces": {
            "dtype": "U8",
            "shape": [total],
            "data_offsets": [4 * count, 4 * count + total],
        },
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (_HEADER_BYTES - 8 - len(text))
    return struct.pack("<Q", len(text)) + text


def require() -> None:
    """Refuse now if deltas cannot be written later."""
    _zstandard()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingError(
            "deltas need the zstandard package", advice="pip install 'polo-proof[delta]'"
        ) from error
    return zstandard
