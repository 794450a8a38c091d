"""Making enrolments, looking them up, closing and withdrawing them."""

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from polo.protocol.effort import DataRecord
from polo.protocol.log_notes import COSIGNATURE, NoteKey
from polo.protocol.records import Manifest
from polo.registry.commitments.chains import about_secret
from polo.registry.context import Registry
from polo.registry.enrolments import closing, past
from polo.registry.enrolments.terms import terms_for
from polo.registry.events import service as events
from polo.registry.problems import CODES, Problem
from polo.registry.schema import enrolments
from polo.registry.uploads import retention

CODES.update(
    {
        "enrolment.closed": "The enrolment is closed.",
        "enrolment.failed": "The chain failed a challenge.",
        "enrolment.manifest": "The manifest is not that of the commitments.",
        "enrolment.missing": "There is no such enrolment.",
        "enrolment.not-yours": "Only the enrolled identity may do this.",
        "enrolment.open": "The enrolment is still open.",
        "enrolment.options": "The registry does not enrol with such options.",
        "enrolment.parent": "The enrolment to go on from is not one that can be gone on from.",
        "enrolment.too-many": "The identity has as many enrolments as one may have.",
        "enrolment.too-many-failed": "The identity has failed more often than one may here.",
        "enrolment.withdrawn": "The enrolment was withdrawn.",
    }
)


_DAY = 86_400


@dataclass(frozen=True)
class Enrolled:
    """An enrolment with what became of it.

    Attributes:
        id: Its digest, in hexadecimal.
        identity: The prover.
        task: The task's name.
        record: Canonical bytes of the signed enrolment.
        layout: Canonical bytes of the layout.
        state: `open`, `closed`, `failed` or `withdrawn`.
        shards: Receipts given, without that of the start.
        issued: When it was made.
        changed: When something last happened.
        parent: Enrolment of the chain it goes on from, if any.
    """

    id: str
    identity: str
    task: str
    record: bytes
    layout: bytes
    state: str
    shards: int
    issued: int
    changed: int
    parent: str | None


_COLUMNS = [enrolments.c[name] for name in Enrolled.__dataclass_fields__]


def make(
    registry: Registry,
    connection: Connection,
    *,
    identity: str,
    key: bytes,
    task: str,
    bits: int | None,
    data: DataRecord | None,
    parent: str | None,
    start: bytes | None,
    request: str | None,
) -> Enrolled:
    """Draw κ, sign terms, and keep both.

    Args:
        registry: The registry.
        connection: A write transaction.
        identity: The prover's id.
        key: The key that the chain will be signed with.
        task: The task; `registry.tasks.get(task)` was called before, since it may take long.
        bits: Bits of a mark; None for the usual.
        data: The data, where the terms ask for replay.
        parent: Enrolment of the chain to go on from.
        start: Root that it ends in, by `last_root`.
        request: The request's id.
    """
    from polo.enrolment import enrol_live

    _check_count(registry, connection, identity)
    _check_past(registry, connection, identity)
    offered, now = registry.tasks.get(task), registry.clock()
    origin = registry.settings.origin
    terms = terms_for(
        offered,
        origin=origin,
        log=NoteKey(origin, registry.vault.log_key(connection).public_key),
        witnesses=_witnesses(registry),
        keep=registry.settings.keep_days,
        bits=bits,
        data=data,
        parent=start,
    )
    secret = secrets.token_bytes(32)
    issuer = registry.vault.issuer(connection)
    record = enrol_live(terms, identity=key, issuer=issuer, secret=secret, issued=now)
    id_ = record.digest.hex()
    made = Enrolled(
        id_, identity, task, record.to_bytes(), offered.layout.to_bytes(), "open", 0, now, now,
        parent,
    )  # fmt: skip
    sealed = registry.vault.seal(secret, about_secret(id_))
    connection.execute(insert(enrolments).values(**made.__dict__, secret=sealed, manifest=None))
    events.note(connection, "enrolment.made", id_, task, actor=identity, request=request, now=now)
    return made


def _check_count(registry: Registry, connection: Connection, identity: str) -> None:
    """Refuse one more than an identity may have; two at once must not both be the last.

    Those of the last day count whatever became of them: each leaves a row behind for ever.
    """
    registry.database.lock(connection, f"enrolments of {identity}")
    most, today = registry.settings.max_enrolments, registry.clock() - _DAY
    counted = (enrolments.c.state == "open") | (enrolments.c.issued > today)
    query = select(func.count()).where(enrolments.c.identity == identity, counted)
    if connection.execute(query).scalar_one() >= most:
        raise Problem(
            429,
            "enrolment.too-many",
            f"{most} enrolments of yours are open or of the last day, which is the most here",
            advice="Close chains that are done, or withdraw them (POST /v1/enrolments/ID/withdraw);"
            " a day later they count no more.",
        )


def _check_past(registry: Registry, connection: Connection, identity: str) -> None:
    """Refuse whoever was caught so often that another try is no accident."""
    others = past.others(connection, identity)
    count, most = others.failed + others.stuck, registry.settings.max_failed
    if count >= most:
        raise Problem(
            403,
            "enrolment.too-many-failed",
            f"{count} chains of yours failed a challenge or are stuck; {most} are the most here",
            advice="Ask the operator, who can check a stuck answer again or allow more.",
        )


def last_root(connection: Connection, parent: str, layout: bytes) -> bytes:
    """Root of the model that a closed chain ends in; a large manifest takes seconds to read.

    Args:
        connection: A transaction that nobody waits for.
        parent: Enrolment of the chain.
        layout: Digest of the layout that its tensors must have.
    """
    found = connection.execute(select(*_COLUMNS).where(enrolments.c.id == parent)).first()
    data = _manifest(connection, parent)
    if found is None or found.state != "closed" or data is None:
        raise Problem(422, "enrolment.parent", "the parent is no closed chain of this registry")
    manifest = Manifest.from_bytes(data, "parent")
    if manifest.terms.layout != layout:
        raise Problem(422, "enrolment.parent", "the parent's tensors are not the task's")
    return manifest.last_root


def get(connection: Connection, enrolment: str) -> Enrolled:
    """An enrolment, or a `Problem`."""
    row = connection.execute(select(*_COLUMNS).where(enrolments.c.id == enrolment)).first()
    if row is None:
        raise Problem(404, "enrolment.missing", "there is no such enrolment")
    return _enrolled(row)


def page(
    connection: Connection,
    *,
    identity: str | None,
    state: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[Enrolled]:
    """Enrolments by id, from after one on.

    Args:
        connection: A transaction.
        identity: Whose; None for everybody's.
        state: Only those in this state.
        after: Id of the last one of the page before.
        limit: How many at most.
    """
    query = select(*_COLUMNS).where(enrolments.c.id > after)
    if identity is not None:
        query = query.where(enrolments.c.identity == identity)
    if state is not None:
        query = query.where(enrolments.c.state == state)
    rows = connection.execute(query.order_by(enrolments.c.id).limit(limit))
    return [_enrolled(row) for row in rows]


def close(
    registry: Registry,
    connection: Connection,
    found: Enrolled,
    manifest: Manifest,
    request: str | None,
) -> Enrolled:
    """Close a chain with its manifest, read by `closing.read`; it must say what the log says."""
    from polo.registry.challenges import service as challenges

    data = manifest.to_bytes()
    if found.state == "closed" and _manifest(connection, found.id) == data:
        return found
    _check_open(found)
    closing.check(connection, found.id, manifest)
    closed = _change(registry, connection, found, "closed", request, manifest=data)
    challenges.closed(registry, connection, found.id, manifest)
    return closed


def withdraw(
    registry: Registry, connection: Connection, found: Enrolled, request: str | None
) -> Enrolled:
    """Give a chain up. What is in the log stays there."""
    if found.state == "withdrawn":
        return found
    _check_open(found)
    return _change(registry, connection, found, "withdrawn", request)


def secret(registry: Registry, connection: Connection, found: Enrolled) -> bytes:
    """κ of a chain that gets no more receipts."""
    if found.state == "open":
        raise Problem(409, "enrolment.open", "the secret is shown when the chain is closed")
    query = select(enrolments.c.secret).where(enrolments.c.id == found.id)
    sealed = connection.execute(query).scalar_one()
    return registry.vault.open(bytes(sealed), about_secret(found.id))


def _change(
    registry: Registry,
    connection: Connection,
    found: Enrolled,
    state: str,
    request: str | None,
    **more: Any,
) -> Enrolled:
    now = registry.clock()
    # A challenge may have ended badly since it was read; a chain that failed stays so.
    same = (enrolments.c.id == found.id) & (enrolments.c.state == found.state)
    changing = update(enrolments).where(same).values(state=state, changed=now, **more)
    if connection.execute(changing).rowcount != 1:
        _check_open(get(connection, found.id))
    retention.settle(registry, connection, found.id)
    events.note(
        connection, f"enrolment.{state}", found.id, actor=found.identity, request=request, now=now
    )
    return get(connection, found.id)


def _check_open(found: Enrolled) -> None:
    if found.state != "open":
        raise Problem(409, f"enrolment.{found.state}", f"the enrolment is {found.state}")


def _witnesses(registry: Registry) -> list[NoteKey]:
    found = [NoteKey.parse(item, place="witnesses") for item in registry.settings.witnesses]
    return [key for key in found if key.kind == COSIGNATURE]


def _manifest(connection: Connection, enrolment: str) -> bytes | None:
    query = select(enrolments.c.manifest).where(enrolments.c.id == enrolment)
    found = connection.execute(query).scalar()
    return None if found is None else bytes(found)


def _enrolled(row: Row[Any]) -> Enrolled:
    values = dict(row._mapping)
    return Enrolled(
        **{**values, "record": bytes(values["record"]), "layout": bytes(values["layout"])}
    )
