"""Reading commitments back, and giving a receipt that waited for a challenge."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update

from polo.protocol.entries import Entry, live_nonce
from polo.protocol.records import Receipt
from polo.registry.commitments.answers import Answer, Place, Receipted, receipt_of
from polo.registry.commitments.chains import Chain
from polo.registry.commitments.group import asked
from polo.registry.context import Registry
from polo.registry.log import service as log
from polo.registry.problems import Problem
from polo.registry.schema import commitments, enrolments, objects

# A row is a tuple, whose own `index` would hide the column's.
_ROWS = select(
    *(column for column in commitments.c if column.name != "index"),
    commitments.c.index.label("place"),
)


@dataclass(frozen=True)
class Committed:
    """A commitment as lists show it.

    Attributes:
        shard: Number of the shard; 0 for the start.
        entry: The entry.
        index: Place in the log.
        time: When it was noted.
        receipt: The receipt; None while a challenge is open.
        matches: Bits that the registry read right in the opening; None if it did not read.
    """

    shard: int
    entry: Entry
    index: int
    time: int
    receipt: Receipt | None
    matches: int | None

    def to_json(self) -> dict[str, Any]:
        """As an answer shows it."""
        return {
            "shard": self.shard,
            "entry": self.entry.to_json(),
            "index": self.index,
            "time": self.time,
            "receipt": self.receipt.to_json() if self.receipt else None,
            "matches": self.matches,
        }


def page(
    connection: Connection, enrolment: str, *, after: int = -1, limit: int = 100
) -> list[Committed]:
    """Commitments of a chain from after a shard on."""
    rows = connection.execute(
        _ROWS.where(commitments.c.enrolment == enrolment, commitments.c.shard > after)
        .order_by(commitments.c.shard)
        .limit(limit)
    )
    return [_committed(row) for row in rows]


def _committed(row: Any) -> Committed:
    return Committed(
        row.shard,
        Entry.from_bytes(bytes(row.record), "entry"),
        row.place,
        row.time,
        Receipt.from_bytes(bytes(row.receipt), "receipt") if row.receipt else None,
        row.matches,
    )


def entry_of(connection: Connection, enrolment: str, shard: int) -> Entry | None:
    """The entry of a shard, if it was committed to."""
    row = _row(connection, enrolment, shard)
    return Entry.from_bytes(bytes(row.record), "entry") if row else None


def receipted(connection: Connection, enrolment: str, shard: int) -> Entry | None:
    """The entry of a shard, if its receipt was given, and with it the next nonce."""
    row = _row(connection, enrolment, shard)
    return Entry.from_bytes(bytes(row.record), "entry") if row and row.receipt else None


def is_opened(connection: Connection, enrolment: str, entry: Entry) -> bool:
    """Whether the opening of an entry was uploaded for its chain."""
    assert entry.opening is not None
    query = select(objects.c.sha256).where(
        objects.c.sha256 == entry.opening.hex(),
        objects.c.enrolment == enrolment,
        objects.c.kind == "opening",
    )
    return connection.execute(query).first() is not None


def owner_of(connection: Connection, enrolment: str) -> str | None:
    """The identity that a chain belongs to."""
    query = select(enrolments.c.identity).where(enrolments.c.id == enrolment)
    owner: str | None = connection.execute(query).scalar()
    return owner


def answer(connection: Connection, chain: Chain, shard: int, *, with_nonce: bool) -> Answer:
    """What answered a commitment, with a proof into the log as it is now.

    Args:
        connection: A transaction.
        chain: The chain.
        shard: Number of the shard; 0 for the start.
        with_nonce: Whether whoever asks may see the next nonce.
    """
    row = _row(connection, chain.id, shard)
    if row is None:
        raise Problem(404, "commitment.missing", f"nothing was committed for shard {shard}")
    if row.receipt is None:
        return asked(connection, chain.id, shard)
    head = log.current(connection)
    path = log.inclusion(connection, row.place, head.size)
    entry = Entry.from_bytes(bytes(row.record), "entry")
    return Receipted(
        bytes(row.record),
        bytes(row.receipt),
        live_nonce(chain.secret, entry) if with_nonce else None,
        Place(row.place, head.size, path, log.with_cosignatures(connection, head)),
    )


def release(registry: Registry, connection: Connection, enrolment: str, shard: int) -> None:
    """Give the receipt of a commitment that waited: its challenge has passed."""
    chain = registry.sequencer.chains.load(connection, enrolment)
    row = _row(connection, enrolment, shard)
    if chain is None or row is None:
        raise Problem(404, "commitment.missing", f"nothing was committed for shard {shard}")
    if row.receipt is not None:
        return
    entry = Entry.from_bytes(bytes(row.record), "entry")
    receipt, _ = receipt_of(
        chain,
        entry,
        entry.leaf,
        origin=registry.settings.origin,
        index=row.place,
        time=row.time,
    )
    connection.execute(
        update(commitments)
        .where(commitments.c.enrolment == enrolment, commitments.c.shard == shard)
        .values(receipt=receipt)
    )
    connection.execute(
        update(enrolments)
        .where(enrolments.c.id == enrolment)
        .values(shards=shard, changed=registry.clock())
    )


def _row(connection: Connection, enrolment: str, shard: int) -> Any:
    return connection.execute(
        _ROWS.where(commitments.c.enrolment == enrolment, commitments.c.shard == shard)
    ).first()
