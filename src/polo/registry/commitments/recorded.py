"""The record of a shard's steps, which is here before its commitment where steps may be drawn."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from polo.errors import PoloError
from polo.protocol.entries import Entry
from polo.protocol.records import Shard
from polo.registry.commitments.chains import Chain
from polo.registry.objects import Objects, key_of
from polo.registry.problems import CODES, Problem
from polo.registry.schema import uploads

MOST_SEGMENTS = 2**16
"""Segments of one shard: a record of 5 MiB, which is read while the prover waits."""

_DIGESTS: dict[str, bytes] = {}
"""By which digest an entry would name a file that was read in vain: a prover who sends many, and an
entry that names none of them over and over, has each read once."""

_MOST_DIGESTS = 10_000

CODES.update(
    {
        "commitment.missing-record": "Steps may be drawn from the shard, and its record of them is "
        "not here.",
    }
)


@dataclass(frozen=True)
class Recorded:
    """What a draw must know of a shard's record.

    Attributes:
        segments: Number of its segments.
        always: Those that are run again whatever is drawn: the first, and the largest moves.
    """

    segments: int
    always: frozenset[int]


def read(objects: Objects, chain: Chain, entry: Entry, files: list[str]) -> Recorded:
    """What the record of an entry's shard says, or a `Problem`.

    Args:
        objects: Where the record is.
        chain: The chain.
        entry: The entry, which names the record by its digest.
        files: What `held` found.
    """
    # The server starts without numpy.
    from polo.evidence.replay.record import load_moves, segments_of
    from polo.evidence.replay.timeline import always

    assert entry.shard is not None
    assert chain.recipe is not None
    segments = segments_of(entry.shard.steps, chain.recipe.every)
    if "replay" not in entry.shard.evidence or not segments:
        raise _limits("the terms ask for a record of the shard's steps, and the entry names none")
    if segments > MOST_SEGMENTS:
        raise _limits(
            f"{segments} segments in one shard; at most {MOST_SEGMENTS} where steps are drawn "
            "while the chain grows"
        )
    with tempfile.TemporaryDirectory(prefix="polo-") as folder:
        path = Path(folder) / "record"
        if not fetch(objects, files, entry.shard, path):
            raise missing(chain, entry.number)
        try:
            moves = load_moves(path, segments, "record")
        except PoloError as error:
            raise _limits(str(error)) from error
    return Recorded(segments, frozenset(always(moves[:-1], chain.recipe.top)))


def held(connection: Connection, chain: Chain, shard: Shard) -> list[str]:
    """Digests of the files that may be the record of a shard: a prover may have sent several.

    Args:
        connection: A transaction.
        chain: The chain.
        shard: The shard.
    """
    from polo.evidence.replay.record import segments_of, size_of

    assert chain.recipe is not None
    segments = segments_of(shard.steps, chain.recipe.every)
    found = connection.execute(
        select(uploads.c.sha256)
        .where(
            uploads.c.enrolment == chain.id,
            uploads.c.kind == "record",
            uploads.c.shard == shard.shard,
            uploads.c.size == size_of(segments),
            uploads.c.state == "stored",
        )
        .distinct()
    )
    return list(found.scalars())


def fetch(objects: Objects, files: list[str], shard: Shard, into: Path) -> bool:
    """Bring the record that a shard names into a file; whether it is here.

    Args:
        objects: Where it is.
        files: What `held` found.
        shard: The shard, whose entry says which of them counts.
        into: The file to write.
    """
    from polo.evidence.replay.record import digest_of

    wanted = shard.evidence.get("replay")
    for sha256 in files:
        if _DIGESTS.get(sha256, wanted) != wanted:
            continue
        objects.fetch(key_of(sha256), into)
        found = digest_of(into.read_bytes())
        if found == wanted:
            return True
        into.unlink()
        if len(_DIGESTS) >= _MOST_DIGESTS:
            _DIGESTS.clear()
        _DIGESTS[sha256] = found
    return False


def missing(chain: Chain, number: int) -> Problem:
    """The record that the terms ask for is not here."""
    return Problem(
        409,
        "commitment.missing-record",
        f"the record that shard {number} names was not uploaded for {chain.id[:16]}…",
        advice="Upload it as kind `record` first, then commit.",
    )


def _limits(detail: str) -> Problem:
    return Problem(422, "commitment.limits", detail)
