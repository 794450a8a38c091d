"""The file that a backup is: a strict tar whose last member has the digest of every other.

Standard tools read it, too: `tar -xf FILE && sha256sum -c SHA256SUMS`. A file that was cut off has
no such list, and is refused.
"""

import hashlib
import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self, TypeAlias

from polo.errors import FormatError
from polo.protocol import canonical
from polo.protocol.fields import Boolean, Bytes, Integer, MapOf, Nullable, Record, Text, of
from polo.storage.archive import ArchiveReader, ArchiveWriter, Source

ABOUT = "backup.json"
SUMS = "SHA256SUMS"
KEY = "data.key"
MOST_ROWS = 2**28
"""Most bytes of one piece of a table."""

_MOST_MEMBER = 2**50
_MEMBER = re.compile(
    r"backup\.json|data\.key|SHA256SUMS"
    r"|tables/[a-z_]{1,40}/[0-9]{8}\.jsonl"
    r"|objects/sha256/[0-9a-f]{2}/[0-9a-f]{64}"
)
_IN_MEMORY = 2**20

Sums: TypeAlias = "tempfile.SpooledTemporaryFile[bytes]"


@dataclass(frozen=True)
class About(Record):
    """The first member: what the backup is of.

    Attributes:
        made: When it was begun, in seconds since 1970.
        version: The version of PoLO that made it.
        revision: The shape of the database.
        origin: The registry's name.
        size: Entries of the log.
        root: Root over them; None for a log that is empty.
        tables: Rows of each table.
        key: Whether the data key is in it.
        objects: Whether the files are in it.
    """

    FORMAT = "polo/registry-backup/1"

    made: int = of(Integer(0, canonical.MAX_SAFE_INTEGER))
    version: str = of(Text(64))
    revision: str = of(Text(64))
    origin: str = of(Text(256))
    size: int = of(Integer(0, canonical.MAX_SAFE_INTEGER))
    root: bytes | None = of(Nullable(Bytes(32)))
    tables: dict[str, int] = of(MapOf(Text(40), Integer(0, canonical.MAX_SAFE_INTEGER), 100))
    key: bool = of(Boolean())
    objects: bool = of(Boolean())


class BackupWriter:
    """Writes a backup's members, and at the end the list of their digests."""

    def __init__(self, file: BinaryIO) -> None:
        self._tar = ArchiveWriter(file)
        self._sums = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        with self._sums:
            if kind is None:
                size = self._sums.tell()
                self._sums.seek(0)
                self._tar.add(SUMS, size, self._sums)
                self._tar.close()

    def add(self, name: str, data: bytes) -> None:
        """Add a member that is small enough to be in memory."""
        self.copy(name, len(data), io.BytesIO(data))

    def copy(self, name: str, size: int, source: Source) -> None:
        """Add a member of this size."""
        hashing = _Hashing(source)
        self._tar.add(name, size, hashing)
        self._sums.write(f"{hashing.state.hexdigest()}  {name}\n".encode())


class _Hashing:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.state = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self.state.update(data)
        return data


@dataclass(frozen=True)
class Member:
    """One member; its pieces must be read before the next one.

    Attributes:
        name: Its name.
        size: Its bytes.
        pieces: They, some at a time.
    """

    name: str
    size: int
    pieces: Iterator[bytes]

    def whole(self, most: int = MOST_ROWS) -> bytes:
        """All of its bytes."""
        if self.size > most:
            raise FormatError(f"{self.size} bytes; at most {most} are read", place=self.name)
        return b"".join(self.pieces)


def members(file: BinaryIO, place: str) -> Iterator[Member]:
    """The members of a backup; the list of digests is the last one."""
    file.seek(0)
    reader = ArchiveReader(file, place)
    while True:
        yield (member := _next(reader, place))
        for _ in member.pieces:  # What nobody read.
            pass
        if member.name == SUMS:
            break
    reader.end()


def check(file: BinaryIO, place: str) -> About:
    """Read all of a backup, and refuse it unless it is whole and every digest is right."""
    about: About | None = None
    right = False
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as sums:
        for member in members(file, place):
            if about is None:
                about = _about(member, place, sums)
            elif member.name == SUMS:
                right = _is_same(member, sums)
            else:
                _note(sums, member.name, member.pieces)
    if about is None or not right:
        raise FormatError(
            "its bytes are not those that its list of digests names",
            place=place,
            advice=f"Use another copy. tar -xf it, and sha256sum -c {SUMS} names what is damaged.",
        )
    return about


def _about(member: Member, place: str, sums: Sums) -> About:
    if member.name != ABOUT:
        raise FormatError(f"does not begin with {ABOUT}", place=place)
    data = member.whole(2**20)
    _note(sums, ABOUT, [data])
    return About.from_bytes(data, ABOUT)


def _note(sums: Sums, name: str, pieces: Iterable[bytes]) -> None:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    sums.write(f"{digest.hexdigest()}  {name}\n".encode())


def _is_same(member: Member, sums: Sums) -> bool:
    same = member.size == sums.tell()
    sums.seek(0)
    for piece in member.pieces:
        same = same and sums.read(len(piece)) == piece
    return same


def _next(reader: ArchiveReader, place: str) -> Member:
    name = reader.peek()[:100].rstrip(b"\0").decode("ascii", "replace")
    if not _MEMBER.fullmatch(name):
        raise FormatError(f"{name[:80]!r} is in no backup of a registry", place=place)
    size = reader.enter(name, _MOST_MEMBER)
    return Member(name, size, reader.pieces(size))
