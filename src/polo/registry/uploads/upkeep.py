"""What goes by itself: uploads that were not finished, and files that need not be kept longer."""

import time

from sqlalchemy import Connection, and_, delete, or_, select

from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.jobs import handler
from polo.registry.objects import key_of
from polo.registry.schema import enrolments, objects, uploads
from polo.registry.uploads import partial

_DAY = 86_400
_GRACE = 3600
"""Seconds after which a partial file that no row knows is a leftover."""

_AT_ONCE = 200


@handler("uploads.expire", every=300)
def expire(registry: Registry, _subject: str) -> None:
    """Remove uploads whose time is over, and partial files that nobody knows."""
    now, data = registry.clock(), registry.settings.data
    gone = uploads.c.expires <= now
    with registry.database.begin() as connection:
        over = connection.execute(
            delete(uploads).where(uploads.c.state == "open", gone).returning(uploads.c.id)
        ).scalars()
        ids = list(over)
        if ids:
            detail = f"{len(ids)} uploads were not finished in time"
            note(connection, "uploads.expired", "", detail, actor="registry", now=now)
    for upload in ids:
        partial.remove(data, upload)
    with registry.database.read() as connection:
        known = set(
            connection.execute(select(uploads.c.id).where(uploads.c.state == "open")).scalars()
        )
    for upload in set(partial.all_of(data)) - known:
        path = partial.path_of(data, upload)
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        if age > _GRACE:
            partial.remove(data, upload)


@handler("objects.retain", every=3600)
def retain(registry: Registry, _subject: str) -> None:
    """Remove files whose time is over: by their own date, or so many days after the chain ended."""
    now = registry.clock()
    ended = now - registry.settings.keep_days * _DAY
    over = or_(
        objects.c.keep_until <= now,
        and_(
            objects.c.keep_until.is_(None),
            enrolments.c.state.in_(("closed", "failed", "withdrawn")),
            enrolments.c.changed <= ended,
        ),
    )
    asked = (
        select(objects.c.sha256, objects.c.enrolment, objects.c.kind)
        .join(enrolments, enrolments.c.id == objects.c.enrolment)
        .where(over)
        .limit(_AT_ONCE)
    )
    while not registry.jobs.stopping.is_set():
        with registry.database.read() as connection:
            rows = connection.execute(asked).all()
        for row in rows:
            with registry.database.begin() as connection:
                registry.database.lock(connection, "objects")
                _remove(registry, connection, now, *row)
        if len(rows) < _AT_ONCE:
            return


def _remove(
    registry: Registry, connection: Connection, now: int, sha256: str, enrolment: str, kind: str
) -> None:
    """Remove one chain's hold on a file, and the file when no chain holds it any more."""
    held = objects.c.sha256 == sha256
    connection.execute(delete(objects).where(held, objects.c.enrolment == enrolment))
    stored = and_(uploads.c.sha256 == sha256, uploads.c.enrolment == enrolment)
    connection.execute(delete(uploads).where(stored, uploads.c.state == "stored"))
    note(
        connection,
        "object.removed",
        enrolment,
        f"{kind} {sha256}: its time is over",
        actor="registry",
        now=now,
    )
    # Before the row is gone for good: a kill in between leaves a row without a file, and the next
    # run removes it. The other way round the file would stay for ever.
    if connection.execute(select(objects.c.enrolment).where(held)).first() is None:
        registry.objects.delete(key_of(sha256))
