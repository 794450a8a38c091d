"""A log as files that never change, so that anybody can serve and read it (C2SP tlog-tiles).

A *tile* holds 256 hashes next to each other, of subtrees of 256^level leaves; an *entry bundle*
holds 256 entries. The last ones of a log may hold fewer.

Specification: docs/protocol.md, section 19.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from polo.errors import FormatError, LimitError
from polo.protocol import merkle
from polo.protocol.log_tree import MAX_SIZE, Lookup

HEIGHT = 8
WIDTH = 1 << HEIGHT
HASH_BYTES = 32
MAX_ENTRY = 2**16 - 1
"""Most bytes of an entry: two bytes say how many it has."""

MAX_BUNDLE = WIDTH * (2 + MAX_ENTRY)
MAX_LEVEL = 6
"""Highest level of tiles in a log of at most `MAX_SIZE` entries."""

_PATH = re.compile(
    r"tile/(?P<level>entries|0|[1-9][0-9]?)/(?P<index>(x[0-9]{3}/){0,6}[0-9]{3})"
    r"(\.p/(?P<width>[1-9][0-9]{0,2}))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Tile:
    """Which tile or bundle.

    Attributes:
        level: Level of a tile of hashes; None for a bundle of entries.
        index: Its number within the level.
        width: How much of it is there, 1 to 256.
    """

    level: int | None
    index: int
    width: int = WIDTH

    @property
    def path(self) -> str:
        """Where it is served, below the log's address.

        >>> Tile(0, 1234067).path, Tile(None, 5, 17).path
        ('tile/0/x001/x234/067', 'tile/entries/005.p/17')
        """
        digits = str(self.index)
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        parts = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        index = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
        partial = "" if self.width == WIDTH else f".p/{self.width}"
        return f"tile/{'entries' if self.level is None else self.level}/{index}{partial}"

    @classmethod
    def parse(cls, path: str, *, place: str) -> Self:
        """The tile that a path names; paths that no tile has are refused."""
        found = _PATH.fullmatch(path[:80])
        if found is None:
            raise FormatError("is no path of a tile", place=place)
        level = None if found["level"] == "entries" else int(found["level"])
        index = int(found["index"].replace("/", "").replace("x", ""))
        tile = cls(level, index, int(found["width"] or WIDTH))
        there = tile.width <= WIDTH and (level or 0) <= MAX_LEVEL and tile.start < MAX_SIZE
        if tile.path != path or not there:
            raise FormatError("is no path of a tile", place=place)
        return tile

    @property
    def start(self) -> int:
        """Index of the first entry below it."""
        return self.index << HEIGHT * ((self.level or 0) + 1)

    def check(self, size: int, *, place: str) -> None:
        """Refuse a tile that a log of this size does not have."""
        held = size >> HEIGHT * (self.level or 0)
        if not 0 < self.width <= min(WIDTH, held - self.index * WIDTH):
            raise FormatError(f"a log of {size} entries has no such tile", place=place)


def tiles_of(size: int, level: int | None, *, since: int = 0) -> Iterator[Tile]:
    """The tiles of a level, or the bundles, of a log of `size`; from that of entry `since` on."""
    held = size >> HEIGHT * (level or 0)
    first = since >> HEIGHT * ((level or 0) + 1)
    for index in range(first, -(-held // WIDTH)):
        yield Tile(level, index, min(WIDTH, held - index * WIDTH))


def tile_bytes(tile: Tile, lookup: Lookup) -> bytes:
    """The content of a tile of hashes."""
    if tile.level is None:
        raise FormatError("a bundle of entries is no tile of hashes", place=tile.path)
    level, first = HEIGHT * tile.level, tile.index * WIDTH
    return b"".join(lookup(level, first + at) for at in range(tile.width))


def hashes_of(data: bytes, tile: Tile) -> list[bytes]:
    """The hashes in a tile."""
    if len(data) != tile.width * HASH_BYTES:
        message = f"{len(data)} bytes instead of {tile.width} hashes of {HASH_BYTES}"
        raise FormatError(message, place=tile.path)
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]


def bundle_bytes(entries: Iterable[bytes]) -> bytes:
    """The content of a bundle of entries."""
    parts = []
    for entry in entries:
        if len(entry) > MAX_ENTRY:
            raise LimitError(f"an entry of {len(entry)} bytes; at most {MAX_ENTRY}")
        parts += [len(entry).to_bytes(2, "big"), entry]
    return b"".join(parts)


def entries_of(data: bytes, tile: Tile) -> list[bytes]:
    """The entries in a bundle, as many as it says, and nothing after them."""
    entries: list[bytes] = []
    at = 0
    for _ in range(tile.width):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            raise FormatError(f"ends within entry {tile.start + len(entries)}", place=tile.path)
        entries.append(data[at + 2 : end])
        at = end
    if at != len(data):
        raise FormatError(f"goes on after entry {tile.start + len(entries) - 1}", place=tile.path)
    return entries


def lookup_in(size: int, fetch: Callable[[Tile], Sequence[bytes]]) -> Lookup:
    """A lookup over the tiles of a log.

    Args:
        size: Size of the log.
        fetch: The hashes of a tile; it is asked for the same tile again and again.
    """

    def lookup(level: int, index: int) -> bytes:
        floor, above = divmod(level, HEIGHT)
        first = index << above
        held = size >> HEIGHT * floor
        if index < 0 or first + (1 << above) > held:
            raise FormatError(f"subtree {index} of level {level} asked of a log of {size}")
        number, at = divmod(first, WIDTH)
        tile = Tile(floor, number, min(WIDTH, held - number * WIDTH))
        return merkle.root(fetch(tile)[at : at + (1 << above)])

    return lookup
