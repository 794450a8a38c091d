"""The opening of a mark's leaves."""

import functools
import random
from collections.abc import Iterator

from fuzz import mutation, promises, sandbox, seeds
from fuzz.target import Target
from polo.protocol import chain
from polo.protocol.carrier import Carrier
from polo.protocol.layout import Leaf
from polo.storage import openings
from polo.watermark.mark import Mark, carrier_of, derive
from polo.watermark.reading import OpenedCheckpoint, read, values_of

SHARD = 3


@functools.cache
def wanted() -> tuple[Carrier, Mark, dict[int, Leaf], bytes]:
    """Carrier, mark and leaves of a golden shard, and the root they lead to."""
    manifest = seeds.manifest()
    carrier = carrier_of(manifest.terms, seeds.layout())
    previous = manifest.root_before(SHARD)
    seed = chain.seed_of(manifest.enrolment, seeds.nonce(SHARD), previous=previous)
    mark = derive(manifest.terms, carrier, seed)
    return carrier, mark, carrier.leaves(mark.blocks), manifest.shards[SHARD - 1].root


def check(data: bytes) -> None:
    """Refused, or what was committed to: nothing else leads to the root."""
    carrier, mark, where, committed = wanted()
    with promises.refusals():
        path = sandbox.file(data)
        opening = openings.load(path, carrier.layout, where, place="input")
        promises.require(openings.encode(opening) == data, "an opening has one spelling")
        root = opening.root(carrier.layout, where, place="input")
        promises.require(root != committed or data == _golden(), "one opening leads to the root")
        read(mark, values_of(mark, carrier, OpenedCheckpoint(carrier.layout, opening.chunks)))


@functools.cache
def _golden() -> bytes:
    return (seeds.GOLDEN / f"openings/{SHARD:06d}.safetensors").read_bytes()


def files() -> Iterator[bytes]:
    """A golden opening."""
    yield _golden()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Most times one of the indices, chunks or hashes; sometimes anything."""
    if not rng.randrange(4) or not data:
        return mutation.raw(data, rng)
    changed = bytearray(data)
    start = 8 + int.from_bytes(data[:8], "little")
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(min(start, len(data) - 1), len(data))] = rng.choice(
            (0, 1, 0x7F, 0xFF)
        )
    return bytes(changed)


TARGET = Target(check, files, mutate, most_bytes=64 * 1024)
