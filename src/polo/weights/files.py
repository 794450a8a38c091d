"""Checkpoints as safetensors files.

A checkpoint of a proof has exactly one valid header, the canonical one of its layout, so a
hostile header is never parsed: it is compared. A file that somebody delivers may have any
header; `read_header` parses that one within bounds.
"""

import copy
import errno
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self

from polo.errors import FormatError, LimitError, StoreError, WeightsError
from polo.protocol.canonical import MAX_VALUES
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint

MAX_HEADER = 32 * 2**20
_UNSTORABLE = ("C32", "C128")
_COPY_BYTES = 4 * 2**20


def header_of(layout: Layout) -> bytes:
    """The canonical safetensors header of a layout, length included, padded to eight bytes."""
    entries: dict[str, Any] = {}
    for tensor, start in zip(layout.tensors, layout.offsets, strict=True):
        if tensor.dtype in _UNSTORABLE:
            raise WeightsError(f"safetensors cannot hold type {tensor.dtype}", place=tensor.name)
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.size],
        }
    return encoded_header(entries)


def encoded_header(entries: dict[str, Any]) -> bytes:
    """A safetensors header, length included, padded to eight bytes."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_checkpoint(checkpoint: Checkpoint, out: Callable[[bytes | memoryview], Any]) -> None:
    """Write a checkpoint as canonical safetensors, a few megabytes at a time."""
    out(header_of(checkpoint.layout))
    for at, tensor in enumerate(checkpoint.layout.tensors):
        for start in range(0, tensor.size, _COPY_BYTES):
            out(checkpoint.read(at, start, min(start + _COPY_BYTES, tensor.size)))


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading; links, pipes and devices are refused."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise StoreError(why, place=str(path)) from error
    except ValueError as error:
        raise StoreError(f"cannot be opened: {error}", place=str(path)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StoreError("is not a plain file", place=str(path))
    return os.fdopen(handle, "rb")


def read_span(file: BinaryIO, at: int, end: int, *, place: str) -> bytes:
    """Bytes `at` to `end` of a file, whatever other threads read from it."""
    parts = []
    # One call of the system reads two gigabytes at most.
    while at < end:
        parts.append(os.pread(file.fileno(), end - at, at))
        at += len(parts[-1])
        if not parts[-1]:
            raise FormatError("the file ends too early", place=place)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class FileCheckpoint:
    """A safetensors file read piece by piece, from any number of threads."""

    def __init__(self, path: Path, layout: Layout, data_start: int, offsets: list[int]) -> None:
        self._layout = layout
        self._start = data_start
        self._offsets = offsets
        self._file = open_plain(path)
        self._path = path

    @classmethod
    def canonical(cls, path: Path, layout: Layout) -> Self:
        """Open a checkpoint of a proof; anything but the canonical header is refused."""
        header = header_of(layout)
        self = cls(path, layout, len(header), list(layout.offsets))
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size != len(header) + layout.size:
                raise FormatError(
                    f"{size} bytes; a checkpoint of this layout has {len(header) + layout.size}",
                    place=str(path),
                )
            if os.pread(self._file.fileno(), len(header), 0) != header:
                raise FormatError("the header is not the canonical one", place=str(path))
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def any(cls, path: Path) -> Self:
        """Open a delivered safetensors file with whatever valid header it has."""
        layout, data_start, offsets = read_header(path)
        return cls(path, layout, data_start, offsets)

    @property
    def layout(self) -> Layout:
        """Names, types and shapes."""
        return self._layout

    def read(self, tensor: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        at = self._start + self._offsets[tensor] + start
        return read_span(self._file, at, at + stop - start, place=str(self._path))

    def held(self, rooms: Callable[[int], memoryview] | None = None) -> HeldCheckpoint:
        """The whole checkpoint in memory, read in one go.

        Args:
            rooms: Gives memory of so many bytes; by default it is new.
        """
        if self._offsets != list(self._layout.offsets):
            return HeldCheckpoint.copy_of(self)
        size, done = self._layout.size, 0
        room = rooms(size) if rooms else memoryview(bytearray(size))
        while done < size:
            more = os.preadv(self._file.fileno(), [room[done:]], self._start + done)
            if not more:
                raise FormatError("is shorter than its layout", place=str(self._path))
            done += more
        return HeldCheckpoint(self._layout, room)

    def again(self) -> Self:
        """The same checkpoint once more, which stays open when this one is closed."""
        other = copy.copy(self)
        try:
            other._file = os.fdopen(os.dup(self._file.fileno()), "rb")
        except OSError as error:
            text = f"cannot be opened once more: {error.strerror}"
            raise StoreError(text, place=str(self._path)) from error
        return other

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_header(path: Path) -> tuple[Layout, int, list[int]]:
    """Layout, first data byte and tensor offsets of a safetensors file of unknown origin."""
    place = str(path)
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8:
            raise FormatError("is not a safetensors file", place=place)
        if length > MAX_HEADER:
            raise LimitError(f"a header of {length} bytes; at most {MAX_HEADER}", place=place)
        text = file.read(length)
    entries = parse_object(text, "the safetensors header", place)
    entries.pop("__metadata__", None)
    found = sorted(_entries(entries, size - 8 - length, place), key=lambda e: e[0].name.encode())
    _check_tiling(found, size - 8 - length, place)
    layout = Layout(CHUNK_BYTES, tuple(tensor for tensor, _ in found), ())
    layout.check(place)
    return layout, 8 + length, [start for _, start in found]


def parse_object(text: bytes, what: str, place: str) -> dict[str, Any]:
    """A JSON object that somebody else wrote, without repeated names or odd numbers."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES:
        raise LimitError(f"{what} has more than {MAX_VALUES} values", place=place)
    try:
        value = json.loads(text.decode(), object_pairs_hook=_no_repeats, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not JSON: {error}", place=place) from error
    if not isinstance(value, dict):
        raise FormatError(f"{what} is no object", place=place)
    return value


def _entries(entries: dict[str, Any], available: int, place: str) -> Iterator[tuple[Tensor, int]]:
    for name, entry in entries.items():
        where = f"{place}: {name[:80]}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise FormatError("expected dtype, shape and data_offsets", place=where)
        tensor = Tensor.from_json(
            {"name": name, "dtype": entry["dtype"], "shape": entry["shape"]}, where
        )
        offsets = entry["data_offsets"]
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(at) is int for at in offsets)
            or not 0 <= offsets[0] <= offsets[1] <= available
            or offsets[1] - offsets[0] != tensor.size
        ):
            raise FormatError("the offsets do not fit type, shape and file", place=where)
        yield tensor, offsets[0]


def _check_tiling(found: list[tuple[Tensor, int]], available: int, place: str) -> None:
    """Refuse tensors that overlap or leave bytes out: a small file must not pose as a large one."""
    end = 0
    for start, size in sorted((start, tensor.size) for tensor, start in found):
        if start != end:
            raise FormatError("the tensors overlap or leave a gap", place=place)
        end = start + size
    if end != available:
        raise FormatError("there are bytes that belong to no tensor", place=place)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Encoding refuses lone surrogates, which could be neither sorted nor printed.
    if len({key.encode() for key, _ in pairs}) != len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} has no place here")
