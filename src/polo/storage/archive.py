"""The tar file that a bundle is: read and written in exactly one form.

Standard tools list and unpack it. Reading never interprets a header: name and size of a member fix
all 512 bytes of it, and they are compared. Links, devices, long names, sparse files and extensions
have no header that could match. Nothing is compressed, so what comes out of a file is never larger
than the file.

Specification: docs/protocol.md, section 12.6.
"""

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from polo.errors import FormatError, LimitError

BLOCK = 512
RECORD = 20 * BLOCK
_PIECE = 2**20
_SIZE_FIELD = slice(124, 136)
_OCTAL_SIZES = 8**11
_FETCH = "Copy or download it again."


class Source(Protocol):
    """Where the bytes of a member come from."""

    def read(self, size: int = -1, /) -> bytes:
        """At most so many bytes; none at the end."""


def header(name: str, size: int) -> bytes:
    """The one header that a member of this name and size can have."""
    octal = b"%011o\0" % size if size < _OCTAL_SIZES else b"\x80" + size.to_bytes(11, "big")
    before = name.encode().ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + octal
    before += b"00000000000\0"
    after = b"0".ljust(101, b"\0") + b"ustar  \0" + bytes(247)
    total = sum(before) + 8 * ord(" ") + sum(after)
    return before + b"%06o\0 " % total + after


class ArchiveWriter:
    """Writes members one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115

    def add(self, name: str, size: int, source: Source) -> None:
        """Add a member; the source has at least so many bytes."""
        member = tarfile.TarInfo(name)
        member.size = size
        self._tar.addfile(member, source)

    def close(self) -> None:
        """Write the end."""
        self._tar.close()


class ArchiveReader:
    """Reads members one after the other; the reader says which one must come next.

    Args:
        file: The archive, a plain file.
        place: What to call it in errors.
    """

    def __init__(self, file: BinaryIO, place: str) -> None:
        self._file = file
        self._place = place
        self._left = os.fstat(file.fileno()).st_size
        self._read = 0
        self._ahead: bytes | None = None

    def peek(self) -> bytes:
        """The next block, as it is."""
        if self._ahead is None:
            self._ahead = self._take(BLOCK)
        return self._ahead

    def enter(self, name: str, most: int) -> int:
        """Go on to the next member, which must have this name.

        Args:
            name: Its name.
            most: Most bytes that it may have.

        Returns:
            Its size. All of it must be read, by `pieces`, before the next call.
        """
        found, self._ahead = self.peek(), None
        size = _size_in(found)
        if size is None or found != header(name, size):
            raise FormatError(f"{name} does not come where it must, as it must", place=self._place)
        if size > most:
            raise LimitError(f"{name} has {size} bytes; at most {most}", place=self._place)
        if size > self._left:
            raise self._truncated()
        return size

    def pieces(self, size: int) -> Iterator[bytes]:
        """The bytes of the member that was entered, some at a time."""
        for start in range(0, size, _PIECE):
            yield self._take(min(_PIECE, size - start))
        self._zeros(-size % BLOCK)

    def end(self) -> None:
        """Refuse anything after the last member but the zeros that tar writes."""
        ahead, self._ahead = self._ahead or b"", None
        padding = 2 * BLOCK - len(ahead)
        padding += -(self._read + padding) % RECORD
        if any(ahead) or self._left > padding:
            raise FormatError("something follows that does not belong here", place=self._place)
        self._zeros(padding)

    def _zeros(self, count: int) -> None:
        if any(self._take(count)):
            raise FormatError("there are bytes between the members", place=self._place)

    def _take(self, count: int) -> bytes:
        data = self._file.read(count) if count <= self._left else b""
        if len(data) != count:
            raise self._truncated()
        self._left -= count
        self._read += count
        return data

    def _truncated(self) -> FormatError:
        return FormatError("the file ends too early", place=self._place, advice=_FETCH)


def _size_in(block: bytes) -> int | None:
    """The size that a header names, if it is a size at all."""
    field = block[_SIZE_FIELD]
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field[:-1]
    octal = digits.isdigit() and not set(digits) & set(b"89")
    return int(digits, 8) if octal else None
