"""GGUF files, as llama.cpp and its kin read them.

The `gguf` package knows the block formats and undoes them. The header is parsed here: the
package's own reader believes every count in it and makes an object of every element.

The file: magic, version, counts; keys with values, of which only a few matter here; for each
tensor a name, its dimensions (fastest first), type and offset; then, aligned, the data.
"""

import contextlib
import functools
import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from polo.errors import FormatError, LimitError, MissingError
from polo.protocol.layout import MAX_BYTES, MAX_TENSORS
from polo.weights import dtypes
from polo.weights.files import open_plain, read_span
from polo.weights.found_model import FoundModel, FoundTensor, Source, Values, describe

_FLOATS = ("F16", "BF16", "F32", "F64")
_INTEGERS = ("I8", "I16", "I32", "I64")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_KEPT = ("general.alignment", "general.architecture", "split.no", "split.count")

_MAX_KEYS = 2**16
_MAX_KEY = 1024
_MAX_NAME = 512
_MAX_TEXT = 1024
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
_MAX_ITEMS = 2_000_000
"""Strings and nested arrays that are stepped over, one by one; large vocabularies have 600,000."""

_NAME = re.compile(r"[^\x00-\x1f\x7f]+")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dims: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Packing:
    """How a type packs its values: so many of them into so many bytes."""

    kind: str
    block: int
    size: int
    type: Any
    refusal: str


@dataclass(frozen=True, slots=True)
class _Data:
    """The blocks of one tensor. A class, as there may be many: closures would take more memory."""

    file: BinaryIO
    packing: _Packing
    start: int
    place: str

    def read(self, start: int, stop: int) -> Values:
        block, size = self.packing.block, self.packing.size
        first, last = start // block, -(-stop // block)
        at, end = self.start + first * size, self.start + last * size
        values = _dequantise(read_span(self.file, at, end, place=self.place), self.packing)
        skipped = start - first * block
        return values[skipped : skipped + stop - start]


class _Header:
    """Steps through a header; never reads or skips past the end of the file."""

    def __init__(self, file: BinaryIO, size: int, place: str) -> None:
        self._file = file
        self._size = size
        self._items = 0
        self.at = 0
        self.place = place

    def take(self, count: int) -> bytes:
        self.step(count)
        data = self._file.read(count)
        if len(data) != count:
            raise FormatError("the GGUF header ends too early", place=self.place)
        return data

    def step(self, count: int) -> None:
        if count > self._size - self.at:
            raise FormatError("the GGUF header ends too early", place=self.place)
        self.at += count

    def skip(self, count: int) -> None:
        self.step(count)
        self._file.seek(count, os.SEEK_CUR)

    def number(self, code: str) -> Any:
        data = self.take(struct.calcsize(code))
        return struct.unpack(f"<{code}", data)[0]

    def count(self, what: str, most: int) -> int:
        found: int = self.number("Q")
        if found > most:
            raise LimitError(f"{found} {what}; at most {most}", place=self.place)
        return found

    def item(self) -> None:
        """Count what takes a step of its own, so that no header takes forever."""
        self._items += 1
        if self._items > _MAX_ITEMS:
            raise LimitError(f"more than {_MAX_ITEMS} strings in its header", place=self.place)

    def skip_value(self, kind: int, nesting: int = 0) -> None:
        if kind in _SCALARS:
            self.skip(struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            self.item()
            self.skip(self.number("Q"))
        elif kind == _ARRAY and nesting < _MAX_NESTING:
            self.item()
            self._skip_array(nesting)
        else:
            raise FormatError(f"a value of the unknown type {kind}", place=self.place)

    def _skip_array(self, nesting: int) -> None:
        kind, count = self.number("I"), self.number("Q")
        if kind in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[kind]))
            return
        for _ in range(count):
            self.skip_value(kind, nesting + 1)


def open_gguf(path: Path) -> FoundModel:
    """Open a GGUF file of version 2 or 3, little-endian.

    Raises:
        MissingError: The `gguf` package is not installed.
        FormatError: The header does not say what it must.
    """
    require()
    place = str(path)
    with contextlib.ExitStack() as files:
        file = files.enter_context(open_plain(path))
        size = os.fstat(file.fileno()).st_size
        header = _Header(file, size, place)
        count = _read_start(header)
        keys = _read_keys(header, header.count("keys", _MAX_KEYS))
        entries = [_read_entry(header) for _ in range(count)]
        alignment = _alignment(keys, place)
        start = -(-header.at // alignment) * alignment
        sources = _sources(file, entries, start, size, alignment, place)
        form = _form(keys)
        return FoundModel(sources, describe(form, len(sources), size), files)


def require() -> Any:
    """The `gguf` package, or what to do to get it."""
    try:
        import gguf
    except ImportError as error:
        raise MissingError(
            "GGUF files need the gguf package", advice="pip install 'polo-proof[gguf]'"
        ) from error
    return gguf


def _read_start(header: _Header) -> int:
    if header.take(4) != b"GGUF":
        raise FormatError("is not a GGUF file", place=header.place)
    version = header.number("I")
    if version not in (2, 3):
        if version & 0xFFFF == 0:
            raise FormatError("big-endian GGUF files are not read", place=header.place)
        raise FormatError(
            f"GGUF version {version}; versions 2 and 3 are read",
            place=header.place,
            advice="Write it again with a current llama.cpp.",
        )
    return header.count("tensors", MAX_TENSORS)


def _read_keys(header: _Header, count: int) -> dict[str, Any]:
    """Steps over all keys and their values, and keeps the few that matter."""
    seen: set[bytes] = set()
    kept: dict[str, Any] = {}
    for _ in range(count):
        key = header.take(header.count("bytes in a key", _MAX_KEY))
        if key in seen:
            raise FormatError(f"the key {key[:80]!r} appears twice", place=header.place)
        seen.add(key)
        kind = header.number("I")
        name = key.decode("utf-8", "replace")
        if name in _KEPT and kind == _STRING:
            kept[name] = header.take(header.count(f"bytes in {name}", _MAX_TEXT))
        elif name in _KEPT and kind in _SCALARS:
            kept[name] = header.number(_SCALARS[kind])
        else:
            header.skip_value(kind)
    return kept


def _read_entry(header: _Header) -> _Entry:
    raw = header.take(header.count("bytes in a tensor's name", _MAX_NAME))
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError("a tensor's name is not UTF-8", place=header.place) from error
    if not _NAME.fullmatch(name):
        raise FormatError(f"a tensor has the name {name[:80]!r}", place=header.place)
    place = f"{header.place}: {name[:80]}"
    dimensions = header.number("I")
    if dimensions > _MAX_DIMENSIONS:
        raise LimitError(f"{dimensions} dimensions; at most {_MAX_DIMENSIONS}", place=place)
    dims = tuple(header.number("Q") for _ in range(dimensions))
    if math.prod(max(size, 1) for size in dims) > MAX_BYTES:
        raise LimitError(f"dimensions of {dims}", place=place)
    return _Entry(name, dims, header.number("I"), header.number("Q"))


def _alignment(keys: dict[str, Any], place: str) -> int:
    alignment = keys.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise FormatError("the alignment is no power of two", place=place)
    return alignment


def _form(keys: dict[str, Any]) -> str:
    architecture = keys.get("general.architecture", b"")
    word = architecture.decode("utf-8", "replace") if isinstance(architecture, bytes) else ""
    form = f"GGUF ({word})" if _WORD.fullmatch(word) else "GGUF"
    part, parts = keys.get("split.no"), keys.get("split.count")
    if type(part) is int and type(parts) is int and parts > 1:
        # The other parts are files of their own; llama.cpp can merge them.
        form += f", part {part + 1} of {parts}"
    return form


def _sources(
    file: BinaryIO, entries: list[_Entry], start: int, size: int, alignment: int, place: str
) -> list[Source]:
    found: dict[str, Source] = {}
    spans = []
    for entry in entries:
        where = f"{place}: {entry.name[:80]}"
        if entry.name in found:
            raise FormatError("two tensors have this name", place=where)
        packing = _packing(entry.type, where)
        row = entry.dims[0] if entry.dims else 1
        if row % packing.block:
            raise FormatError(f"rows of {row} do not fill blocks of {packing.block}", place=where)
        length = math.prod(entry.dims) // packing.block * packing.size
        if entry.offset % alignment:
            raise FormatError(f"its offset {entry.offset} is not aligned", place=where)
        if entry.offset + length > size - start:
            raise FormatError("its data lies past the end of the file", place=where)
        if length:
            spans.append((entry.offset, entry.offset + length))
        tensor = FoundTensor(entry.name, entry.dims[::-1], packing.kind, packing.refusal)
        data = _Data(file, packing, start + entry.offset, place)
        found[entry.name] = Source(tensor, None if packing.refusal else data.read)
    end = 0
    for first, last in sorted(spans):
        if first < end:
            raise FormatError("the tensors overlap", place=place)
        end = last
    return list(found.values())


def _dequantise(data: bytes, packing: _Packing) -> Values:
    if packing.kind in _FLOATS:
        return dtypes.to_float(data, packing.kind)
    # As one long row: the package cuts its work at rows.
    row = np.frombuffer(data, np.uint8).reshape(1, -1)
    values: Values = require().quants.dequantize(row, packing.type)
    return values.reshape(-1)


@functools.cache
def _known_packing(number: int) -> _Packing | None:
    gguf = require()
    try:
        known = gguf.GGMLQuantizationType(number)
        block, size = gguf.GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        return None
    refusal = ""
    if known.name in _INTEGERS:
        refusal = f"values of type {known.name} are no weights by themselves"
    elif known.name not in _FLOATS:
        try:
            gguf.quants.dequantize(np.zeros((1, size), np.uint8), known)
        except NotImplementedError:
            refusal = f"the gguf package cannot dequantise {known.name}"
    return _Packing(known.name, block, size, known, refusal)


def _packing(number: int, place: str) -> _Packing:
    packing = _known_packing(number)
    if packing is None:
        raise FormatError(
            f"its type, number {number}, is unknown to the installed gguf package",
            place=place,
            advice="pip install --upgrade gguf",
        )
    return packing
