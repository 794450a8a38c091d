"""What goes by itself: uploads that were not finished, and files that need not be kept longer."""

import itertools
import time
from collections.abc import Iterator

from sqlalchemy import delete, select

from polo.registry.context import Registry
from polo.registry.database import Database
from polo.registry.events.service import note
from polo.registry.jobs import handler
from polo.registry.objects import Objects
from polo.registry.schema import objects, scans, uploads
from polo.registry.uploads import partial, retention

_DAY = 86_400
_GRACE = 3600
"""Seconds after which a partial file that no row knows is a leftover."""

ORPHAN_AGE = _DAY
"""Seconds after which a file that no row names is a leftover: its row comes right after it."""

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
    forget_pieces(registry)


def forget_pieces(registry: Registry) -> None:
    """Remove partial files of this folder that nobody knows; workers have other folders."""
    data = registry.settings.data
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
    """Remove files whose time is over, with an event for each chain."""
    with registry.database.read() as connection:
        ended = retention.unsettled(connection)
    for enrolment in ended:
        with registry.database.begin() as connection:
            retention.settle(registry, connection, enrolment)
    while not registry.jobs.stopping.is_set():
        with registry.database.read() as connection:
            rows = retention.over(connection, registry.clock(), _AT_ONCE)
        for enrolment, own in itertools.groupby(rows, key=lambda row: str(row.enrolment)):
            retention.remove(registry, enrolment, list(own))
        if len(rows) < _AT_ONCE:
            return


@handler("objects.sweep", every=_DAY)
def sweep(registry: Registry, _subject: str) -> None:
    """Remove files that no row names: whoever put them there was killed before it could say so."""
    gone = registry.objects.tidy(ORPHAN_AGE)
    for sha256 in orphans(registry.database, registry.objects):
        if registry.jobs.stopping.is_set():
            break
        gone += retention.discard(registry, sha256)
    if gone:
        with registry.database.begin() as connection:
            detail = f"{gone} files that nothing named"
            now = registry.clock()
            note(connection, "objects.swept", "", detail, actor="registry", now=now)


def orphans(database: Database, store: Objects) -> Iterator[str]:
    """Digests of files that no chain and no scan names, and that have been there for a while."""
    aged = (key for key, modified in store.listed() if time.time() - modified > ORPHAN_AGE)
    while keys := list(itertools.islice(aged, _AT_ONCE)):
        found = [key.rpartition("/")[2] for key in keys]
        busy = scans.c.state.in_(("waiting", "running"))
        with database.read() as connection:
            named = select(objects.c.sha256).where(objects.c.sha256.in_(found))
            looked = select(scans.c.sha256).where(scans.c.sha256.in_(found), busy)
            known = {*connection.execute(named).scalars(), *connection.execute(looked).scalars()}
        yield from (sha256 for sha256 in found if sha256 not in known)
