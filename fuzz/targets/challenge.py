"""What a verifier asks to see again, as the prover reads it and as verification judges it."""

import functools
from collections.abc import Iterator

from fuzz import mutation, promises, sandbox, seeds
from fuzz.target import Target
from polo.checks import Status
from polo.evidence.replay import asking, challenge
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary, Record
from polo.evidence.replay.timeline import Timeline
from polo.protocol.challenge import Challenge, Place


@functools.cache
def timeline() -> Timeline:
    """Records for the golden proof, which has none of its own."""
    manifest, recipe = seeds.manifest(), Recipe(samples=99, batch=9, every=3, draws=2, top=1)
    records = {}
    for shard in manifest.shards:
        count = recipe.segments(shard.steps)
        boundaries = tuple(Boundary(bytes(32), bytes(32)) for _ in range(count + 1))
        moves = (*((at * shard.shard, at) for at in range(count)), (9, 0))
        records[shard.shard] = Record(boundaries, moves, "{}")
    return Timeline(manifest, recipe, records)


def check(data: bytes) -> None:
    """Refused, or a challenge of one spelling whose every place is there or complained about."""
    with promises.refusals():
        found = challenge.load(sandbox.file(data))
        promises.require(found.to_bytes() == data, "a challenge has one spelling")
        promises.require(len(found.digest) == 32, "a challenge has a digest")
        places = found.segments
        promises.require(list(places) == sorted(set(places)), "places are sorted, each once")
        complaint = asking.unfit(found, timeline())
        if complaint is None:
            promises.require(all(map(timeline().has, places)), "every place is there")
            list(asking.unanswered(found, timeline()))
        else:
            promises.require(complaint.status is Status.UNDECIDED, "it is the verifier's paper")
            promises.require(len(complaint.sentence()) < 500, "a complaint is short")


def documents() -> Iterator[bytes]:
    """A drawn challenge, one with ends, and one that asks for nothing."""
    for ends in (False, True):
        yield challenge.draw_from(timeline(), ends=ends).to_bytes()
    yield Challenge(bytes(32), (), (), False, 0).to_bytes()
    yield Challenge(bytes(32), (Place(1, 0), Place(1, 7), Place(3, 2)), (1, 3), True, 1).to_bytes()


TARGET = Target(check, documents, mutation.document)
