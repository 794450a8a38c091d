"""Tiles and bundles of a log: a line with the path, then the content."""

import random
from collections.abc import Iterator

from fuzz import mutation, promises
from fuzz.target import Target
from polo.protocol import log_tiles
from polo.protocol.log_tiles import Tile

_PATHS = (
    b"tile/0/000", b"tile/entries/000.p/0", b"tile/entries/x001/001", b"tile/63/000.p/255",
    b"tile/entries/000.p/256", b"tile/0/x999/x999/x999/999.p/3", b"tile/1/000.p/-1",
)  # fmt: skip


def check(data: bytes) -> None:
    """Refused, or exactly as much content as the path says, of one spelling."""
    name, _, content = data.partition(b"\n")
    with promises.refusals():
        path = name.decode("latin-1")
        tile = Tile.parse(path, place="input")
        promises.require(tile.path == path, "a path has one spelling")
        promises.require(0 < tile.width <= log_tiles.WIDTH, "a tile has its bounds")
        if tile.level is None:
            entries = log_tiles.entries_of(content, tile)
            promises.require(len(entries) == tile.width, "a bundle has its entries")
            promises.require(log_tiles.bundle_bytes(entries) == content, "and nothing else")
        else:
            hashes = log_tiles.hashes_of(content, tile)
            promises.require(b"".join(hashes) == content, "a tile has its hashes")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The path or the content is changed, or a length in it."""
    name, _, content = data.partition(b"\n")
    if not rng.randrange(3):
        name = rng.choice(_PATHS) if rng.randrange(2) else mutation.raw(name, rng)
    else:
        content = mutation.raw(content, rng)
    return name + b"\n" + content


def tiles() -> Iterator[bytes]:
    """Whole and partial ones."""
    for tile in (Tile(0, 0, 3), Tile(1, 1234), Tile(2, 7, 255)):
        yield tile.path.encode() + b"\n" + bytes(tile.width * log_tiles.HASH_BYTES)
    for entries in ([b""], [b"a", b"", b"bcd" * 99], [b"x"] * 256):
        tile = Tile(None, 5, len(entries))
        yield tile.path.encode() + b"\n" + log_tiles.bundle_bytes(entries)


TARGET = Target(check, tiles, mutate)
