"""The record of a shard's training, as level replay reads it."""

import json
import random
from collections.abc import Iterator

from fuzz import mutation, promises, sandbox
from fuzz.target import Target
from polo.evidence.replay import platform, record

SEGMENTS = 3


def check(data: bytes) -> None:
    """Refused, or a record that has one spelling and a description that can be compared."""
    with promises.refusals():
        found = record.load(sandbox.file(data), SEGMENTS, place="input")
        promises.require(found.encode() == data, "a record has one spelling")
        promises.require(found.segments == SEGMENTS, "a record has the segments asked for")
        before = platform.describe("cpu")
        with platform.adopted(found.platform):
            platform.same(platform.parse(found.platform, "there"), platform.describe("cpu"))
        promises.require(platform.describe("cpu") == before, "what was adopted is put back")


def files() -> Iterator[bytes]:
    """A record of this machine, and the plainest."""
    boundaries = tuple(
        record.Boundary(bytes([at]) * 32, bytes([at + 9]) * 32) for at in range(SEGMENTS + 1)
    )
    moves = (*((2**at, 2**63 - 1) for at in range(SEGMENTS)), (5, 0))
    for text in (platform.text_of(platform.describe("cpu")), "{}"):
        yield record.Record(boundaries, moves, text).encode()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A state, a move or the platform; sometimes anything."""
    kind = rng.randrange(6)
    if kind == 0:
        return mutation.raw(data, rng)
    start = 8 + int.from_bytes(data[:8], "little")
    if kind < 3:
        changed = bytearray(data)
        changed[rng.randrange(start, len(data))] = rng.choice((0, 1, 0x20, 0x7F, 0x80, 0xFF))
        return bytes(changed)
    text = mutation.spell(mutation.tree(json.loads(data[-platform.SIZE :]), rng))
    return data[: -platform.SIZE] + text[: platform.SIZE].ljust(platform.SIZE)


TARGET = Target(check, files, mutate)
