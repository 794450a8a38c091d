"""How far chains are: read once for a whole group, inside its transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    String,
    any_,
    bindparam,
    case,
    func,
    select,
    true,
)

from polo.registry.commitments.rules import Standing, Submission
from polo.registry.reading import rows_at
from polo.registry.schema import commitments, enrolments, identities, objects, requests
from polo.registry.writing import insert_new


def _standings_with(newest: FromClause, on: ColumnElement[bool]) -> Select[Any]:
    return (
        select(
            enrolments.c.id,
            enrolments.c.state,
            identities.c.key,
            identities.c.revoked,
            newest.c.shard,
            newest.c.root,
            newest.c.time,
            case((newest.c.receipt.is_(None), 1), else_=0).label("waits"),
        )
        .join(identities, identities.c.id == enrolments.c.identity)
        .outerjoin(newest, on)
    )


_own = commitments.c.enrolment == enrolments.c.id
_last = select(func.max(commitments.c.shard)).where(_own).correlate(enrolments).scalar_subquery()
_BY_IDS = _standings_with(commitments, _own & (commitments.c.shard == _last)).where(
    enrolments.c.id.in_(bindparam("ids", expanding=True))
)
# An array is one value, so the statement stays the same, and PostgreSQL keeps its plan; also one
# that it made while the table was small, so nothing is left to it that a large table would mind.
_NEWEST = select(commitments).where(_own).order_by(commitments.c.shard.desc()).limit(1)
_BY_ARRAY = _standings_with(_NEWEST.lateral("newest"), true()).where(
    enrolments.c.id == any_(bindparam("ids", type_=ARRAY(String)))
)
_OPENINGS = select(objects.c.sha256, objects.c.enrolment).where(
    objects.c.kind == "opening", objects.c.sha256.in_(bindparam("digests", expanding=True))
)


@dataclass(frozen=True)
class Earlier:
    """A commitment with a root that is committed to again."""

    shard: int
    record: bytes
    index: int
    receipt: bytes | None


@dataclass(frozen=True)
class Known:
    """What a group must know.

    Attributes:
        fresh: Key and nonce of the requests that were not here before.
        standings: How far each chain is.
        earlier: Commitments by enrolment and root, for the roots in the group.
        opened: Digest and enrolment of the openings that are here.
    """

    fresh: set[tuple[bytes, bytes]]
    standings: dict[str, Standing]
    earlier: dict[tuple[str, bytes], Earlier]
    opened: set[tuple[str, str]]


def learn(connection: Connection, group: Sequence[Submission]) -> Known:
    """Spend the requests' nonces and read everything else: four statements at most."""
    return Known(
        _spend(connection, group),
        _standings(connection, list({item.chain.id for item in group})),
        _earlier(connection, list({(item.entry.root, item.chain.id) for item in group})),
        _opened(connection, group),
    )


def _spend(connection: Connection, group: Sequence[Submission]) -> set[tuple[bytes, bytes]]:
    given = {(item.authorization.key, item.authorization.nonce): item for item in group}
    rows = [
        {"key": key, "nonce": nonce, "time": item.authorization.time}
        for (key, nonce), item in given.items()
    ]
    return {(bytes(key), bytes(nonce)) for key, nonce in insert_new(connection, requests, rows)}


def standing_of(connection: Connection, enrolment: str) -> Standing | None:
    """How far one chain is; None if there is no such chain."""
    return _standings(connection, [enrolment]).get(enrolment)


def _standings(connection: Connection, ids: list[str]) -> dict[str, Standing]:
    statement = _BY_IDS if connection.dialect.name == "sqlite" else _BY_ARRAY
    rows = connection.execute(statement, {"ids": ids})
    return {row.id: _standing(row) for row in rows}


def _standing(row: Any) -> Standing:
    begun = row.shard is not None
    return Standing(
        key=bytes(row.key),
        revoked=row.revoked is not None,
        state=row.state,
        last=row.shard,
        root=bytes(row.root) if begun else b"",
        time=row.time if begun else 0,
        waits=begun and bool(row.waits),
    )


def _earlier(
    connection: Connection, pairs: list[tuple[bytes, str]]
) -> dict[tuple[str, bytes], Earlier]:
    columns = ("enrolment", "root", "shard", "record", "index", "receipt")
    rows = rows_at(connection, commitments, ("root", "enrolment"), columns, pairs)
    return {
        (enrolment, bytes(root)): Earlier(
            shard, bytes(record), index, None if receipt is None else bytes(receipt)
        )
        for enrolment, root, shard, record, index, receipt in rows
    }


def _opened(connection: Connection, group: Sequence[Submission]) -> set[tuple[str, str]]:
    streamed = [item.entry for item in group if item.chain.streams]
    digests = [entry.opening.hex() for entry in streamed if entry.opening]
    if not digests:
        return set()
    rows = connection.execute(_OPENINGS, {"digests": digests})
    return {(row.sha256, row.enrolment) for row in rows}
