"""Reading the mark in an opening that came before its commitment, or with it. numpy."""

import hashlib
import tempfile
from pathlib import Path

from sqlalchemy import Connection, select

from polo.errors import PoloError
from polo.protocol import chain as walk
from polo.protocol.detection import Reading
from polo.protocol.entries import Entry, live_nonce
from polo.registry.commitments.chains import Chain
from polo.registry.context import Registry
from polo.registry.objects import Objects, key_of
from polo.registry.problems import Problem
from polo.registry.schema import objects as rows
from polo.registry.uploads import partial

_PLACE = "opening"


def check(connection: Connection, chain: Chain, entry: Entry, data: bytes) -> None:
    """Refuse an opening that came with its entry and that the entry does not name.

    Args:
        connection: A transaction.
        chain: The chain.
        entry: The entry of the shard.
        data: The opening's bytes.
    """
    assert entry.opening is not None
    if hashlib.sha256(data).digest() != entry.opening:
        raise Problem(422, "upload.wrong-digest", "the entry names an opening of another digest")
    kind = connection.execute(
        select(rows.c.kind).where(
            rows.c.sha256 == entry.opening.hex(), rows.c.enrolment == chain.id
        )
    ).scalar()
    if kind not in (None, "opening"):
        raise Problem(409, "upload.other-kind", f"these bytes are here as a file of {kind}")


def keep(registry: Registry, data: bytes) -> None:
    """Put an opening onto the disk, before the row that names it is written, and again after.

    The second time finds it there, unless it went, as a file that nothing named, in between.
    """
    try:
        partial.check_room(registry.settings.data, len(data))
        registry.objects.put(key_of(hashlib.sha256(data).hexdigest()), data)
    except OSError as error:
        raise partial.no_space(error) from error


def matches(
    objects: Objects, chain: Chain, previous: Entry, entry: Entry, data: bytes | None = None
) -> int:
    """Bits that read right in the opening of an entry's shard.

    Args:
        objects: Where the opening is.
        chain: The chain.
        previous: The entry that comes before.
        entry: The entry of the shard.
        data: The opening's bytes, where they came with the entry.

    Raises:
        Problem: The opening is not that of the weights committed to, or its mark does not pass.
    """
    # The server starts without numpy.
    from polo.storage import openings
    from polo.watermark.mark import carrier_of, derive
    from polo.watermark.reading import OpenedCheckpoint, read, values_of

    assert entry.shard is not None
    assert entry.opening is not None
    nonce = live_nonce(chain.secret, previous)
    seed = walk.seed_of(chain.record, nonce, previous=previous.root)
    carrier = carrier_of(chain.terms, chain.layout)
    mark = derive(chain.terms, carrier, seed)
    where = carrier.leaves(mark.blocks)
    try:
        if data is None:
            with tempfile.TemporaryDirectory(prefix="polo-") as folder:
                path = Path(folder) / "opening"
                objects.fetch(key_of(entry.opening), path)
                opening = openings.load(path, chain.layout, where, place=_PLACE)
        else:
            opening = openings.decode(data, chain.layout, where, place=_PLACE)
        root = opening.root(chain.layout, where, place=_PLACE)
        opened = OpenedCheckpoint(chain.layout, opening.chunks)
        reading = read(mark, values_of(mark, carrier, opened))
    except PoloError as error:
        raise _failed(str(error)) from error
    if root != entry.root:
        raise _failed("what is opened does not belong to the weights that are committed to")
    _check(chain, entry.shard.matches, reading)
    return reading.matches


def _check(chain: Chain, claimed: int, reading: Reading) -> None:
    limits = chain.terms.thresholds
    if not reading.passes(limits.verify, limits.log2_p):
        raise _failed(
            f"{reading.matches} of {reading.bits} bits read right, log2 p = {reading.log2_p:.1f}"
        )
    if reading.matches != claimed:
        raise _failed(f"the entry says {claimed} bits read right, {reading.matches} do")


def _failed(detail: str) -> Problem:
    return Problem(
        422,
        "commitment.failed-mark",
        detail,
        advice="Nothing was committed. Seal the shard again from the weights you hold.",
    )
