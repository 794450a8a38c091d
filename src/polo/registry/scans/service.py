"""Asking for scans, and looking up what came of them."""

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from polo.protocol.uniqueness import Uniqueness
from polo.registry.callers import Caller
from polo.registry.context import Registry
from polo.registry.events.service import note
from polo.registry.objects import key_of
from polo.registry.problems import CODES, Problem
from polo.registry.schema import commitments, enrolments, scans, uploads
from polo.registry.uploads.retention import discard

JOB = "scan"

MOST_WAITING = 8
"""Scans of one caller that may wait or run at the same time."""

CODES.update(
    {
        "scan.missing": "There is no such scan, or it is not yours.",
        "scan.no-checkpoint": "The checkpoint that was committed to last was not uploaded.",
        "scan.not-yours": "Only the enrolled identity, or an auditor, may ask for this.",
        "scan.size": "The file is too large, or its size was not said.",
        "scan.too-many": "Too many scans of yours are waiting.",
    }
)


@dataclass(frozen=True)
class Scan:
    """One scan.

    Attributes:
        id: Its id.
        enrolment: The chain whose checkpoint is looked at; None for a found file.
        shard: Whose checkpoint it is.
        asked: Who wants to know.
        sha256: The model's digest.
        state: `waiting`, `running`, `done` or `broken`.
        made: When it was asked for.
        ended: When it was over.
        chains: Chains that were looked for.
        result: What was found, from the end on.
        statement: What the registry signs of a chain's last checkpoint.
    """

    id: str
    enrolment: str | None
    shard: int | None
    asked: str
    sha256: str
    state: str
    made: int
    ended: int | None = None
    chains: int | None = None
    result: dict[str, Any] | None = None
    statement: Uniqueness | None = None

    @classmethod
    def of(cls, row: Row[Any]) -> "Scan":
        """The scan of a row."""
        said = dict(row._mapping)
        said["result"] = json.loads(row.result) if row.result else None
        signed = row.statement and Uniqueness.from_bytes(bytes(row.statement), "statement")
        return cls(**(said | {"statement": signed or None}))

    def to_json(self) -> dict[str, Any]:
        """As an answer shows it."""
        shown = {name: value for name, value in self.__dict__.items() if name != "asked"}
        return shown | {"statement": self.statement.to_json() if self.statement else None}


def about(
    registry: Registry, enrolment: str, caller: Caller, *, request: str | None = None
) -> Scan:
    """Ask whose marks are in the checkpoint that a chain committed to last."""
    with registry.database.begin() as connection:
        owner = connection.execute(
            select(enrolments.c.identity).where(enrolments.c.id == enrolment)
        ).scalar()
        if owner is None:
            raise Problem(404, "enrolment.missing", "there is no such enrolment")
        if caller.identity != owner and not caller.is_at_least("auditor"):
            raise Problem(403, "scan.not-yours", "it is somebody else's chain")
        shard, sha256 = _last_checkpoint(connection, enrolment)
        return _enqueue(
            registry, connection, enrolment, shard, sha256, caller.actor, request=request
        )


def found(registry: Registry, file: Path, asked: str, *, request: str | None = None) -> Scan:
    """Ask whose marks are in a file, which is taken over and removed when all is done.

    Args:
        registry: The registry.
        file: The file.
        asked: Who wants to know.
        request: The request's id.
    """
    with file.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    registry.objects.put(key_of(sha256), file)
    file.unlink()
    try:
        with registry.database.begin() as connection:
            return _enqueue(registry, connection, None, None, sha256, asked, request=request)
    except Exception:
        # No scan knows the file, so nobody would ever remove it.
        forget(registry, sha256)
        raise


def forget(registry: Registry, sha256: str) -> None:
    """Remove a found file, unless a chain or another scan needs it."""
    discard(registry, sha256)


def check_waiting(registry: Registry, asked: str) -> None:
    """Refuse somebody who waits for many scans already."""
    with registry.database.read() as connection:
        _check_waiting(connection, asked)


def get(connection: Connection, scan: str) -> Scan:
    """A scan, or a `Problem`."""
    row = connection.execute(select(scans).where(scans.c.id == scan)).first()
    if row is None:
        raise Problem(404, "scan.missing", "there is no such scan")
    return Scan.of(row)


def _enqueue(
    registry: Registry,
    connection: Connection,
    enrolment: str | None,
    shard: int | None,
    sha256: str,
    asked: str,
    *,
    request: str | None,
) -> Scan:
    _check_waiting(connection, asked)
    now = registry.clock()
    made = Scan(secrets.token_hex(16), enrolment, shard, asked, sha256, "waiting", now)
    connection.execute(
        insert(scans).values(
            id=made.id,
            enrolment=enrolment,
            shard=shard,
            asked=asked,
            sha256=sha256,
            state=made.state,
            made=now,
        )
    )
    note(connection, "scan.asked", enrolment or made.id, actor=asked, request=request, now=now)
    registry.jobs.enqueue(connection, JOB, made.id)
    return made


def _check_waiting(connection: Connection, asked: str) -> None:
    waiting = connection.execute(
        select(func.count())
        .select_from(scans)
        .where(scans.c.asked == asked, scans.c.state.in_(("waiting", "running")))
    ).scalar_one()
    if waiting >= MOST_WAITING:
        raise Problem(429, "scan.too-many", f"{waiting} scans of yours are not done yet")


def _last_checkpoint(connection: Connection, enrolment: str) -> tuple[int, str]:
    """The shard that was committed to last, and the digest of its file."""
    last = connection.execute(
        select(func.max(commitments.c.shard)).where(commitments.c.enrolment == enrolment)
    ).scalar()
    sha256 = last and stored_checkpoint(connection, enrolment, last)
    if not last or not sha256:
        raise Problem(
            409,
            "scan.no-checkpoint",
            f"the checkpoint of shard {last} is not here" if last else "no shard was committed to",
            advice="Upload it first: POST /v1/uploads with kind checkpoint and its shard.",
        )
    return last, sha256


def stored_checkpoint(connection: Connection, enrolment: str, shard: int) -> str | None:
    """Digest of a shard's checkpoint, if it was uploaded; nobody has checked its root."""
    query = select(uploads.c.sha256).where(
        uploads.c.enrolment == enrolment,
        uploads.c.kind == "checkpoint",
        uploads.c.shard == shard,
        uploads.c.state == "stored",
    )
    sha256: str | None = connection.execute(query.order_by(uploads.c.made.desc())).scalar()
    return sha256
