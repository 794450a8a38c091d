"""How long files are kept: as the terms say, counted from a chain's end or its last verdict.

Reports are kept for good: verdicts name them. Everything else that a prover uploaded goes when its
time is over. Entries, receipts, the manifest, challenges and verdicts are rows, and stay.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, not_, or_, select, update

from polo.protocol.records import Enrolment
from polo.registry.context import Registry
from polo.registry.enrolments.past import GOING, STUCK
from polo.registry.events.service import note
from polo.registry.objects import key_of
from polo.registry.schema import (
    challenges,
    enrolments,
    events,
    objects,
    scans,
    uploads,
    verifications,
)

REMOVED = "objects.removed"
_DAY = 86_400
_BUSY = ("waiting", "running")
_UPLOADED = objects.c.kind != "report"


@dataclass(frozen=True)
class Kept:
    """What became of a chain's uploaded files.

    Attributes:
        files: How many are here.
        until: When they go; None while the chain is open, or if there are none.
        removed: When some were removed last; None if none ever was.
    """

    files: int
    until: int | None
    removed: int | None


def days_of(registry: Registry, record: bytes) -> int:
    """Days that files are kept: as the terms say, or as the registry usually does."""
    terms = Enrolment.from_bytes(record, "enrolment").terms
    for level in terms.evidence:
        if level.level == "receipts" and "keep" in level.settings:
            return int(level.settings["keep"])
    return registry.settings.keep_days


def settle(registry: Registry, connection: Connection, enrolment: str) -> None:
    """Write down until when the files of a chain are kept; while it is open, nobody knows."""
    row = connection.execute(
        select(enrolments.c.record, enrolments.c.state, enrolments.c.changed).where(
            enrolments.c.id == enrolment
        )
    ).one()
    if row.state == "open":
        return
    judged = connection.execute(
        select(func.max(verifications.c.ended)).where(verifications.c.enrolment == enrolment)
    ).scalar()
    until = max(row.changed, judged or 0) + days_of(registry, bytes(row.record)) * _DAY
    # What is over by now was let go for another reason.
    now = registry.clock()
    later = and_(objects.c.keep_until > now, objects.c.keep_until < until)
    connection.execute(
        update(objects)
        .where(objects.c.enrolment == enrolment, _UPLOADED)
        .where(or_(objects.c.keep_until.is_(None), later))
        .values(keep_until=until)
    )


def unsettled(connection: Connection) -> list[str]:
    """Chains that have ended, with files of which nobody has said yet how long they are kept."""
    query = (
        select(objects.c.enrolment)
        .join(enrolments, enrolments.c.id == objects.c.enrolment)
        .where(objects.c.keep_until.is_(None), _UPLOADED, enrolments.c.state != "open")
        .distinct()
    )
    return list(connection.execute(query).scalars())


def over(connection: Connection, now: int, limit: int) -> Sequence[Row[Any]]:
    """Files whose time is over and that nothing needs that is still under way."""
    running = select(verifications.c.enrolment).where(verifications.c.state.in_(_BUSY))
    # What is stuck stays so for ever; of a chain that has ended nobody waits for it.
    asked = (
        select(challenges.c.answer)
        .join(enrolments, enrolments.c.id == challenges.c.enrolment)
        .where(challenges.c.state.in_(("open", "answered")), challenges.c.answer.is_not(None))
        .where(or_(enrolments.c.state.in_(GOING), not_(STUCK)))
    )
    query = (
        select(objects)
        .where(objects.c.keep_until <= now)
        .where(objects.c.enrolment.not_in(running), objects.c.sha256.not_in(asked))
        .order_by(objects.c.enrolment, objects.c.sha256)
    )
    return connection.execute(query.limit(limit)).all()


def remove(registry: Registry, enrolment: str, rows: Sequence[Row[Any]]) -> None:
    """Take files from a chain, with an event; those that nobody else holds are deleted."""
    now, named = registry.clock(), [row.sha256 for row in rows]
    counts = Counter(row.kind for row in rows)
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    detail = f"{words}; {sum(row.size for row in rows)} bytes: their time is over"
    with registry.database.begin() as connection:
        registry.database.lock(connection, "objects")
        for table, state in ((objects, None), (uploads, "stored")):
            own = and_(table.c.enrolment == enrolment, table.c.sha256.in_(named))
            held = own if state is None else and_(own, table.c.state == state)
            connection.execute(delete(table).where(held))
        note(connection, REMOVED, enrolment, detail, actor="registry", now=now)
    # A kill from here on leaves files that no row names; the sweep finds them.
    for sha256 in named:
        discard(registry, sha256)


def discard(registry: Registry, sha256: str) -> bool:
    """Delete a file, unless a chain or a scan needs it; whether it was deleted."""
    with registry.database.begin() as connection:
        # Whoever makes a row for it waits, and puts the file there again afterwards.
        registry.database.lock(connection, "objects")
        held = select(objects.c.sha256).where(objects.c.sha256 == sha256)
        looked = select(scans.c.id).where(scans.c.sha256 == sha256, scans.c.state.in_(_BUSY))
        if connection.execute(held).first() or connection.execute(looked).first():
            return False
        registry.objects.delete(key_of(sha256))
        return True


def standing(connection: Connection, enrolment: str) -> Kept:
    """What became of a chain's files."""
    own = select(func.count(), func.max(objects.c.keep_until)).where(
        objects.c.enrolment == enrolment, _UPLOADED
    )
    files, until = connection.execute(own).one()
    gone = select(func.max(events.c.time)).where(
        events.c.subject == enrolment, events.c.action == REMOVED
    )
    return Kept(files, until, connection.execute(gone).scalar())
