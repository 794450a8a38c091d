"""Taking a large file out of a form, straight onto the disk.

The fields that come before the file are checked before a byte of it is kept, so that nobody else's
page can make a visitor send one.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from fastapi import Request
from python_multipart.exceptions import ParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from polo.registry.pages.render import size
from polo.registry.problems import Problem

MAX_FIELD = 4096
MAX_PARTS = 8
SPARE = 2**30
"""Bytes of the disk that no visitor's file takes."""

LOOK_EVERY = 64 * 2**20
"""Bytes after which the room on the disk is looked at again; others write, too."""


@contextlib.contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """A name for a file that is gone in the end, unless somebody has moved it away."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix="found-", suffix=".safetensors", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


async def into_file(
    request: Request,
    path: Path,
    *,
    most: int,
    check: Callable[[dict[str, str]], None],
    wrote: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the file of a form; how many bytes it has.

    Args:
        request: The request, its body unread.
        path: Where to.
        most: Bytes that the file may have.
        check: Looks at the fields before the file, and raises if they are not good.
        wrote: Hears how many bytes were written.
    """
    with path.open("wb") as file:
        parts = _Parts(file, path, most, check)
        parser = MultipartParser(_boundary(request), parts.callbacks())  # type: ignore[arg-type]
        try:
            async for chunk in _chunks(request):
                await run_in_threadpool(parser.write, chunk)
                wrote(len(chunk))
            parser.finalize()
        except ParseError as error:
            raise _broken(str(error)) from error
    if not parts.ended:
        raise _broken("it ends in the middle")
    if parts.files != 1:
        raise _broken("there is no file in it")
    return parts.size


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 256:
        raise _broken("it is no form with a file")
    return boundary


class _Parts:
    """What the parser tells, part by part."""

    def __init__(
        self, file: BinaryIO, path: Path, most: int, check: Callable[[dict[str, str]], None]
    ) -> None:
        self._file, self._path, self._most, self._check = file, path, most, check
        self._fields: dict[str, str] = {}
        self._header = self._value = b""
        self._name, self._is_file, self._held = "", False, bytearray()
        self._parts = self.files = self.size = 0
        self.ended = False

    def callbacks(self) -> dict[str, Callable[..., None]]:
        names = "part_begin part_data part_end header_field header_value header_end end"
        return {f"on_{name}": getattr(self, name) for name in [*names.split(), "headers_finished"]}

    def part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _broken("it has too many fields")
        self._name, self._is_file, self._held = "", False, bytearray()

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            self._is_file = b"filename" in options
        self._header = self._value = b""

    def headers_finished(self) -> None:
        if self._is_file:
            self.files += 1
            if self.files > 1:
                raise _broken("it has more than one file")
            self._check(self._fields)

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._held += data[start:end]
            if len(self._held) > MAX_FIELD:
                raise _broken("a field is too long")
            return
        if self.size // LOOK_EVERY != (self.size + end - start) // LOOK_EVERY or not self.size:
            self._check_room()
        self.size += end - start
        if self.size > self._most:
            words = f"the file has more than {size(self._most)}"
            raise Problem(413, "body.too-large", words, headers={"Connection": "close"})
        self._file.write(data[start:end])

    def part_end(self) -> None:
        if not self._is_file:
            self._fields[self._name] = self._held.decode("utf-8", "replace")

    def end(self) -> None:
        self.ended = True

    def _check_room(self) -> None:
        if shutil.disk_usage(self._path.parent).free < SPARE:
            raise Problem(503, "registry.busy", "there is no room for the file right now")


def _broken(detail: str) -> Problem:
    return Problem(400, "body.broken", f"the form cannot be read: {detail}")
