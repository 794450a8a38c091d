"""Asking for verifications, and what comes of them."""

import secrets
from typing import Any

from sqlalchemy import Connection, Row, select

from polo._version import __version__
from polo.checks import plain
from polo.protocol import canonical, signing
from polo.protocol.records import LEVELS
from polo.protocol.verdicts import MAX_CHECKS, Asked, CheckRecord, SignedVerdict
from polo.registry.challenges import service as challenges
from polo.registry.context import Registry
from polo.registry.enrolments import past
from polo.registry.events.service import note
from polo.registry.problems import CODES, Problem
from polo.registry.schema import verifications
from polo.registry.uploads import service as uploads
from polo.registry.verifications.assembly import Holdings, row_of

CODES.update(
    {
        "verification.challenges-open": "The chain has challenges that are not answered yet.",
        "verification.incomplete": "The registry does not hold all files of the proof.",
        "verification.missing": "There is no such verification, or it is not yours.",
        "verification.no-report": "There is no report, or not yet.",
        "verification.not-closed": "Only a closed chain is verified.",
        "verification.running": "A verification of this chain is waiting or running.",
    }
)

PUBLIC = "done"
"""A verification with a verdict is for everybody; until then it is nobody else's business."""

_MOST_BYTES = 12 * 2**20
"""Bytes of checks in a verdict, well within what one document may have."""


def ask(
    registry: Registry, connection: Connection, enrolment: str, upload: str | None, *, actor: str
) -> Row[Any]:
    """Ask for a verification of a closed chain.

    Args:
        registry: The registry.
        connection: The caller's transaction.
        enrolment: The chain.
        upload: An uploaded bundle to verify; by default what the registry holds.
        actor: Who asks.
    """
    now = registry.clock()
    registry.database.lock(connection, f"verifications of {enrolment}")
    row = row_of(connection, enrolment)
    if row.manifest is None:
        raise Problem(409, "verification.not-closed", "the chain is not closed")
    _check_free(connection, enrolment)
    stored = uploads.stored(connection, enrolment, upload, "proof") if upload else None
    bundle = stored.sha256 if stored else None
    made = secrets.token_hex(16)
    values = {"id": made, "enrolment": enrolment, "state": "waiting", "made": now}
    connection.execute(verifications.insert().values(**values, progress="waiting", bundle=bundle))
    registry.jobs.enqueue(connection, "verify", made, queue=registry.tasks.queue_of(row.task))
    note(connection, "verification.asked", made, enrolment, actor=actor, now=now)
    return find(connection, made)


def check_complete(registry: Registry, connection: Connection, enrolment: str) -> None:
    """Refuse where files of the proof are not here. It reads a lot: not in a write transaction."""
    if row_of(connection, enrolment).manifest is None:
        raise Problem(409, "verification.not-closed", "the chain is not closed")
    if missing := Holdings.load(registry, connection, enrolment).missing():
        raise Problem(
            409,
            "verification.incomplete",
            f"{len(missing)} files of the proof are not here: {', '.join(missing[:3])}"
            + (", …" if len(missing) > 3 else ""),
            advice="Upload them (kind record), or the whole proof as a bundle (kind proof).",
            errors=[{"at": path, "message": "is not here"} for path in missing],
        )


def _check_free(connection: Connection, enrolment: str) -> None:
    running = connection.execute(
        select(verifications.c.id).where(
            verifications.c.enrolment == enrolment,
            verifications.c.state.in_(("waiting", "running")),
        )
    ).scalar()
    if running:
        raise Problem(409, "verification.running", f"verification {running} is not done yet")
    if any(row.state == "open" for row in challenges.of_enrolment(connection, enrolment)):
        raise Problem(
            409,
            "verification.challenges-open",
            "the chain has challenges that are not answered",
            advice="Answer them first: GET /v1/enrolments/{id}/challenges.",
        )


def find(connection: Connection, verification: str) -> Row[Any]:
    """A verification by its id."""
    asked = select(verifications).where(verifications.c.id == verification)
    row = connection.execute(asked).first()
    if row is None:
        raise Problem(404, "verification.missing", "there is no such verification")
    return row


def of_enrolment(connection: Connection, enrolment: str) -> list[Row[Any]]:
    """All verifications of a chain, oldest first."""
    asked = select(verifications).where(verifications.c.enrolment == enrolment)
    return list(connection.execute(asked.order_by(verifications.c.made, verifications.c.id)))


def latest(connection: Connection, enrolment: str) -> str | None:
    """The outcome of the newest verification of a chain that has one."""
    done = select(verifications.c.outcome).where(
        verifications.c.enrolment == enrolment, verifications.c.outcome.is_not(None)
    )
    newest = done.order_by(verifications.c.ended.desc(), verifications.c.id).limit(1)
    return connection.execute(newest).scalar()


def to_json(row: Row[Any]) -> dict[str, Any]:
    """A verification as answers show it."""
    return {
        "id": row.id,
        "enrolment": row.enrolment,
        "state": row.state,
        "made": row.made,
        "begun": row.begun,
        "ended": row.ended,
        "progress": row.progress,
        "outcome": row.outcome,
        "report": row.report,
        "verdict": canonical.parse(bytes(row.verdict), place="verdict") if row.verdict else None,
    }


def signed(
    registry: Registry,
    connection: Connection,
    holdings: Holdings,
    result: dict[str, Any],
    *,
    report: bytes | None,
) -> SignedVerdict:
    """The verdict that the child reached, as a record that the registry signs."""
    verdict = result["verdict"]
    assert holdings.manifest is not None
    checks, left_out = _records(verdict["checks"])
    issuer = registry.vault.issuer_of(connection, holdings.enrolment.issuer)
    asked = challenges.of_enrolment(connection, holdings.id)
    identity = row_of(connection, holdings.id).identity
    record = SignedVerdict(
        origin=registry.settings.origin,
        enrolment=holdings.enrolment.digest,
        proof=holdings.manifest.digest,
        outcome=verdict["outcome"],
        headline=plain(verdict["headline"])[:2000],
        levels=tuple(item["level"] for item in verdict["levels"] if item["level"] in LEVELS),
        checks=checks,
        left_out=left_out,
        challenges=tuple(Asked(row.kind, row.shard or 0, row.state) for row in asked),
        others=past.others(connection, identity, but=holdings.id),
        report=report,
        version=__version__,
        time=registry.clock(),
        issuer=issuer.public_key,
    )
    return signing.sign(record, issuer)


def _records(checks: list[dict[str, Any]]) -> tuple[tuple[CheckRecord, ...], int]:
    """The checks as records; of too many, those that passed go first."""
    made = [_record(check) for check in checks]
    size = 0
    kept: set[int] = set()
    for at in sorted(range(len(made)), key=lambda at: made[at].status == "passed"):
        size += len(canonical.encode(made[at].to_json()))
        if size > _MOST_BYTES or len(kept) >= MAX_CHECKS:
            break
        kept.add(at)
    return tuple(made[at] for at in sorted(kept)), len(made) - len(kept)


def _record(check: dict[str, Any]) -> CheckRecord:
    figures = list(check["figures"].items())[:64]
    return CheckRecord(
        name=check["name"],
        level=check["level"],
        status=check["status"].replace(" ", "-"),
        shard=check["shard"],
        ancestor=check["ancestor"],
        place=plain(check["place"])[:512],
        detail=plain(check["detail"])[:2000],
        figures={name: plain(str(value))[:128] for name, value in figures},
    )
