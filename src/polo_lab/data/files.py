"""Finding and reading files of data sets. Nothing is unpickled, and sizes are bounded."""

import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError, LimitError, MissingError
from polo_lab.data.digests import check_digest

MOST_BYTES = 2**30
"""No file, packed or not, is larger than this."""

_PACKINGS = ("", ".xz", ".gz")
_BROKEN = (OSError, EOFError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


def folder() -> Path:
    """The folder that the setting POLO_DATA names."""
    return Path(os.environ.get("POLO_DATA", ""))


def find(*names: str) -> Path | None:
    """The first of some files, plain or packed, that the folder holds."""
    for name in names:
        for packing in _PACKINGS:
            if (path := folder() / f"{name}{packing}").is_file():
                return path
    return None


def plain_name(path: Path) -> str:
    """What a file is called without its packing: digests are of what is in it."""
    packing = next((own for own in _PACKINGS if own and path.name.endswith(own)), "")
    return path.name.removesuffix(packing)


def missing(title: str, where: str) -> MissingError:
    """The error for data that are not there."""
    given = os.environ.get("POLO_DATA")
    why = f"POLO_DATA is {given!r}, which is no folder. " if given else "POLO_DATA is not set. "
    if given and folder().is_dir():
        why = ""
    return MissingError(
        f"{title} is not here",
        advice=f"{why}Let POLO_DATA name the folder that holds {where}; see docs/laboratory.md. To "
        "try things out, take the small stand-in (load(…, fallback=True), polo-lab run NAME "
        "--quick).",
    )


def absent(wanted: Sequence[str]) -> str:
    """Which files of a form are not there, where others of it are; else nothing."""
    names = [name for name in wanted if not find(name)]
    if not names or len(names) == len(wanted):
        return ""
    return f" Of {len(wanted)} files {len(names)} are not there: {', '.join(names)}."


def read(path: Path, *, digest: str = "") -> bytes:
    """A file's bytes, unpacked.

    Args:
        path: The file.
        digest: SHA-256 of what is in it, if it is known.
    """
    place, data = str(path), _raw(path)
    if path.suffix == ".xz":
        with lzma.open(io.BytesIO(data)) as file:
            data = _bounded(file, place)
    elif path.suffix == ".gz":
        with gzip.open(io.BytesIO(data)) as packed:
            data = _bounded(packed, place)
    if digest:
        check_digest(data, digest, place)
    return data


def text(path: Path, *, digest: str = "") -> str:
    """A file's text."""
    try:
        return read(path, digest=digest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("is no UTF-8 text", place=str(path)) from error


def arrays(path: Path, *names: str, digest: str = "") -> list[NDArray[Any]]:
    """Arrays of an .npz file, none of them of objects.

    Args:
        path: The file.
        names: The arrays.
        digest: SHA-256 of the file, if it is known.
    """
    raw = _raw(path)
    if digest:
        check_digest(raw, digest, str(path))
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return [_array(archive, name, f"{path}, {name}") for name in names]
    except _BROKEN as error:
        raise FormatError(f"cannot be read: {error}", place=str(path)) from error


def _array(archive: zipfile.ZipFile, name: str, place: str) -> NDArray[Any]:
    try:
        with archive.open(f"{name}.npy") as file:
            stream = io.BytesIO(_bounded(file, place))
    except KeyError as error:
        raise FormatError("is not in the file", place=place) from error
    try:
        np.lib.format.read_magic(stream)
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, TypeError) as error:
        raise FormatError(f"is no array: {error}", place=place) from error
    data = stream.read()
    # Python's own integers: shapes in hostile headers overflow others.
    size = dtype.itemsize
    for length in shape:
        size *= int(length)
    if dtype.hasobject or columns_first or size != len(data) or min(shape, default=0) < 0:
        raise FormatError("is no plain array", place=place)
    return np.frombuffer(data, dtype).reshape(shape)


def _raw(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file, str(path))


def _bounded(file: IO[bytes] | gzip.GzipFile, place: str) -> bytes:
    try:
        data = file.read(MOST_BYTES + 1)
    except _BROKEN as error:
        raise FormatError(f"cannot be unpacked: {error}", place=place) from error
    if len(data) > MOST_BYTES:
        raise LimitError(f"more than {MOST_BYTES} bytes", place=place)
    return data
