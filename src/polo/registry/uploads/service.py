"""Opening uploads, taking their pieces, and making objects of them."""

import secrets
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update

from polo.errors import PoloError
from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.objects import key_of
from polo.registry.problems import CODES, Problem
from polo.registry.schema import enrolments, objects, uploads
from polo.registry.uploads import partial, retention
from polo.registry.uploads.bounds import Chain, check_shard, check_size
from polo.registry.uploads.partial import Partial
from polo.registry.writing import insert_new

MOST_OPEN = 16
"""Uploads of one enrolment that may be open at the same time."""

MOST_KEPT = 32
"""Different files of one kind for one shard that a chain may have: more are no mistakes."""

MOST_ANSWERS = 4
"""The same of answers, which are large, and of which one alone is looked at."""

_DAY = 86_400

CODES.update(
    {
        "upload.elsewhere": "Another server of the registry has the pieces that came before.",
        "upload.ended": "The upload is over; nothing more is taken.",
        "upload.expired": "The upload was not finished in time.",
        "upload.missing": "There is no such upload, or it is not yours.",
        "upload.not-yours": "Only the enrolled identity uploads files of a chain.",
        "upload.offset": "The piece does not begin where the upload ends; `Upload-Offset` says it.",
        "upload.other-kind": "The same bytes are here already, as a file of another kind.",
        "upload.over": "The chain has failed or was withdrawn.",
        "upload.refused": "The upload was refused before.",
        "upload.too-long": "The piece goes beyond the size that was agreed.",
        "upload.too-many": "Too many uploads of this chain are open, or files of a shard are here.",
        "upload.wrong-digest": "The bytes are not those of the agreed digest; they were removed.",
        "upload.wrong-layout": "The file is no checkpoint of the enrolled layout; it was removed.",
    }
)


@dataclass(frozen=True)
class Upload:
    """One upload.

    Attributes:
        id: Its id.
        enrolment: The enrolment it belongs to.
        kind: What kind of file it is.
        shard: The shard it is about, if it is about one.
        size: Bytes it will have.
        sha256: Digest it will have.
        received: Bytes that are on the disk.
        state: `open`, `stored` or `refused`.
        made: When it was opened.
        expires: Until when it must be whole.
        server: Which server's folder has its pieces.
    """

    id: str
    enrolment: str
    kind: str
    shard: int | None
    size: int
    sha256: str
    received: int
    state: str
    made: int
    expires: int
    server: str | None = None

    @classmethod
    def of(cls, row: Row[Any]) -> "Upload":
        """The upload of a row."""
        return cls(**row._mapping)


@dataclass(frozen=True)
class Wanted:
    """What somebody wants to upload; see `Upload`."""

    enrolment: str
    kind: str
    shard: int | None
    size: int
    sha256: str


def begin(registry: Registry, identity: str, wanted: Wanted) -> Upload:
    """Open an upload, or find the one that is open for the same file.

    Args:
        registry: The registry.
        identity: Who asks.
        wanted: What they want to upload.

    Returns:
        The upload; it is `stored` at once if the registry has the file.
    """
    now, here = registry.clock(), partial.server_of(registry.settings.data)
    with registry.database.read() as connection:
        # Reading a layout may take a while, in which nobody need wait.
        chain = _chain(connection, wanted.enrolment, identity)
        check_shard(wanted.kind, wanted.shard, chain.enrolment)
        check_size(connection, registry.settings, wanted.kind, wanted.size, chain)
    with registry.database.begin() as connection:
        registry.database.lock(connection, f"uploads of {wanted.enrolment}")
        if known := _known(connection, wanted, now, here):
            return known
        there = _stored(connection, wanted)
        if there and (same := _same(connection, wanted, uploads.c.state == "stored")):
            # The newest file of a shard counts, and this one was sent last; it needs no other row.
            renewed = update(uploads).where(uploads.c.id == same.id).values(made=now)
            connection.execute(renewed)
            return replace(same, made=now)
        if not there:
            _check_count(connection, wanted.enrolment, now)
            _check_kept(connection, wanted)
            partial.check_room(registry.settings.data, wanted.size)
        made = Upload(
            id=secrets.token_hex(16),
            **wanted.__dict__,
            received=wanted.size if there else 0,
            state="stored" if there else "open",
            made=now,
            expires=now + registry.settings.upload_days * _DAY,
            server=here,
        )
        if not there:
            partial.create(registry.settings.data, made.id)
        connection.execute(uploads.insert().values(made.__dict__))
        return made


def get(registry: Registry, identity: str, upload: str) -> Upload:
    """An upload of the caller's."""
    with registry.database.read() as connection:
        return _owned(connection, identity, upload)


def append(registry: Registry, identity: str, upload: str, offset: int, data: bytes) -> Upload:
    """Take a piece; with the last one the file is checked and becomes an object.

    Args:
        registry: The registry.
        identity: Who asks.
        upload: The upload's id.
        offset: Where the piece begins.
        data: The piece. An empty one finishes a whole upload that could not be stored before.
    """
    first = get(registry, identity, upload)
    if first.state == "stored" and offset == first.size and not data:
        return first
    _check_open(first, registry.clock())
    _check_here(registry, first)
    try:
        with partial.locked(registry.settings.data, upload) as file:
            return _appended(registry, identity, upload, file, offset, data)
    except partial.Lost:
        # It may have been finished, and the file moved on, while we looked.
        _check_open(get(registry, identity, upload), registry.clock())
        raise


def _appended(
    registry: Registry, identity: str, upload: str, file: Partial, offset: int, data: bytes
) -> Upload:
    # What was read before the lock may be old.
    current = get(registry, identity, upload)
    _check_open(current, registry.clock())
    _check_place(current, offset, len(data))
    if data:
        file.append(offset, data)
        current = replace(current, received=offset + len(data))
        with registry.database.begin() as connection:
            own = update(uploads).where(uploads.c.id == upload, uploads.c.state == "open")
            connection.execute(own.values(received=current.received))
    return _whole(registry, current, file) if current.received == current.size else current


def cancel(registry: Registry, identity: str, upload: str) -> None:
    """Give up an upload that is not finished."""
    current = get(registry, identity, upload)
    if current.state == "stored":
        raise Problem(409, "upload.ended", "the file is stored already")
    with registry.database.begin() as connection:
        unfinished = (uploads.c.id == upload) & (uploads.c.state != "stored")
        gone = connection.execute(delete(uploads).where(unfinished)).rowcount
    if not gone:
        # Its last piece was faster. The row counts the file, and says which record a shard has.
        raise Problem(409, "upload.ended", "the file is stored already")
    partial.remove(registry.settings.data, upload)


def stored(connection: Connection, enrolment: str, upload: str, kind: str) -> Upload:
    """An upload that is finished, of a kind; for whoever uses its file."""
    row = connection.execute(select(uploads).where(uploads.c.id == upload)).first()
    if row is None or row.enrolment != enrolment:
        raise Problem(404, "upload.missing", "there is no such upload of this chain")
    found = Upload.of(row)
    if found.kind != kind or found.state != "stored":
        raise Problem(
            409, "upload.not-asked", f"it is {found.state}, of kind {found.kind}, not a {kind}"
        )
    return found


def _whole(registry: Registry, upload: Upload, file: Partial) -> Upload:
    """Check a file that is whole, and make an object of it."""
    if file.sha256() != upload.sha256:
        raise _refused(registry, upload, file, "upload.wrong-digest", "the digest is another one")
    if upload.kind == "checkpoint":
        _check_header(registry, upload, file)
    try:
        registry.objects.put(key_of(upload.sha256), file.path)
    except FileNotFoundError as error:
        raise partial.Lost from error  # It was given up meanwhile.
    except OSError as error:
        raise partial.no_space(error) from error
    now = registry.clock()
    row = {"sha256": upload.sha256, "enrolment": upload.enrolment, "kind": upload.kind}
    with registry.database.begin() as connection:
        registry.database.lock(connection, "objects")
        unfinished = (uploads.c.id == upload.id) & (uploads.c.state == "open")
        done = connection.execute(update(uploads).where(unfinished).values(state="stored"))
        if done.rowcount:
            insert_new(connection, objects, [{**row, "size": upload.size, "made": now}])
    if not done.rowcount:
        file.remove()
        retention.discard(registry, upload.sha256)
        raise Problem(404, "upload.missing", "the upload was given up meanwhile")
    # Had another chain the same file, it may have gone by retention before our row was there.
    registry.objects.put(key_of(upload.sha256), file.path)
    file.remove()
    return replace(upload, state="stored")


def _check_header(registry: Registry, upload: Upload, file: Partial) -> None:
    from polo.weights.files import FileCheckpoint

    with registry.database.read() as connection:
        row = _row(connection, upload.enrolment)
        layout = Chain(row.id, bytes(row.record), bytes(row.layout), None).layout
    try:
        FileCheckpoint.canonical(file.path, layout).close()
    except PoloError as error:
        raise _refused(registry, upload, file, "upload.wrong-layout", error.message) from error


def _refused(registry: Registry, upload: Upload, file: Partial, code: str, detail: str) -> Problem:
    now = registry.clock()
    with registry.database.begin() as connection:
        connection.execute(update(uploads).where(uploads.c.id == upload.id).values(state="refused"))
        note(connection, code, upload.id, f"{upload.kind}: {detail}", actor="registry", now=now)
    file.remove()
    return Problem(422, code, detail, advice="Begin again with the right file.")


def _chain(connection: Connection, enrolment: str, identity: str) -> Chain:
    row = _row(connection, enrolment)
    if row.identity != identity:
        raise Problem(403, "upload.not-yours", "the chain belongs to another identity")
    if row.state not in ("open", "closed"):
        raise Problem(409, "upload.over", f"the chain is {row.state}")
    manifest = bytes(row.manifest) if row.manifest else None
    return Chain(row.id, bytes(row.record), bytes(row.layout), manifest)


def _row(connection: Connection, enrolment: str) -> Row[Any]:
    row = connection.execute(select(enrolments).where(enrolments.c.id == enrolment)).first()
    if row is None:
        raise Problem(404, "enrolment.missing", "there is no such enrolment")
    return row


def _known(connection: Connection, wanted: Wanted, now: int, here: str) -> Upload | None:
    """The open upload of the same file, to go on with; one whose pieces another has is left."""
    ours = or_(uploads.c.server == here, uploads.c.server.is_(None))
    return _same(connection, wanted, uploads.c.state == "open", uploads.c.expires > now, ours)


def _same(
    connection: Connection, wanted: Wanted, *conditions: ColumnElement[bool]
) -> Upload | None:
    own = [uploads.c[name] == value for name, value in wanted.__dict__.items()]
    row = connection.execute(select(uploads).where(*own, *conditions)).first()
    return Upload.of(row) if row else None


def _stored(connection: Connection, wanted: Wanted) -> bool:
    """Whether the chain has the very file already."""
    row = connection.execute(
        select(objects).where(
            objects.c.sha256 == wanted.sha256, objects.c.enrolment == wanted.enrolment
        )
    ).first()
    if row is None:
        return False
    if row.kind != wanted.kind:
        raise Problem(409, "upload.other-kind", f"these bytes are here as a file of {row.kind}")
    if row.size != wanted.size:
        raise Problem(422, "upload.wrong-size", f"the file of this digest has {row.size} bytes")
    return True


def _check_count(connection: Connection, enrolment: str, now: int) -> None:
    count = connection.execute(
        select(func.count()).where(
            uploads.c.enrolment == enrolment, uploads.c.state == "open", uploads.c.expires > now
        )
    ).scalar_one()
    if count >= MOST_OPEN:
        raise Problem(
            429,
            "upload.too-many",
            f"{count} uploads of this chain are open",
            advice="Finish or delete some of them.",
        )


def _check_kept(connection: Connection, wanted: Wanted) -> None:
    """Refuse one file after the other for the same place: they would fill the disk."""
    same = [uploads.c[name] == getattr(wanted, name) for name in ("enrolment", "kind", "shard")]
    count = connection.execute(
        select(func.count(uploads.c.sha256.distinct())).where(*same, uploads.c.state == "stored")
    ).scalar_one()
    if count >= (MOST_ANSWERS if wanted.kind == "answer" else MOST_KEPT):
        detail = f"{count} files of kind {wanted.kind} are here for this shard already"
        raise Problem(429, "upload.too-many", detail)


def _owned(connection: Connection, identity: str, upload: str) -> Upload:
    row = connection.execute(
        select(uploads, enrolments.c.identity.label("owner"))
        .join(enrolments, enrolments.c.id == uploads.c.enrolment)
        .where(uploads.c.id == upload)
    ).first()
    if row is None or row.owner != identity:
        raise Problem(404, "upload.missing", "there is no such upload of yours")
    return Upload(**{name: value for name, value in row._mapping.items() if name != "owner"})


def _check_open(upload: Upload, now: int) -> None:
    if upload.state == "refused":
        raise Problem(409, "upload.refused", "the upload was refused", advice="Begin a new one.")
    if upload.state == "stored":
        raise Problem(409, "upload.ended", "the file is stored already")
    if upload.expires <= now:
        raise Problem(410, "upload.expired", "the upload was not finished in time")


def _check_here(registry: Registry, upload: Upload) -> None:
    """Refuse a piece of an upload that another server has begun: its folder has the others."""
    if upload.server not in (None, partial.server_of(registry.settings.data)):
        raise Problem(
            421,
            "upload.elsewhere",
            "another server of this registry has the pieces that came before",
            advice="Begin the upload anew, or tell the operator: the proxy before the servers must "
            "send one client to one server, or they must share their folder.",
        )


def _check_place(upload: Upload, offset: int, count: int) -> None:
    if offset != upload.received:
        raise Problem(
            409,
            "upload.offset",
            f"the upload ends at {upload.received}, the piece begins at {offset}",
            advice=f"Go on from {upload.received}.",
            headers={"Upload-Offset": str(upload.received)},
        )
    if offset + count > upload.size:
        raise Problem(422, "upload.too-long", f"{upload.size} bytes were agreed")
