"""`/v1/verifications`, and the verifications of an enrolment."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, Row

from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.context import Registry
from polo.registry.idempotency import once
from polo.registry.jobs import presence
from polo.registry.objects import key_of
from polo.registry.problems import Problem
from polo.registry.verifications import service
from polo.registry.verifications.assembly import row_of

router = APIRouter(prefix="/v1", tags=["verifications"])

VerificationId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
EnrolmentId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Anyone = Annotated[Caller, Depends(callers.anyone)]
Asking = Annotated[Caller, Depends(callers.role("prover", "auditor"))]
Here = Annotated[Registry, Depends(registry_of)]

_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
"""A report is one page that holds everything; whatever it runs, it runs as nobody."""


class NewVerification(BaseModel):
    """What to verify: what the registry holds, or a bundle that was uploaded."""

    model_config = ConfigDict(extra="forbid", strict=True)

    upload: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None


class VerificationState(BaseModel):
    """How a verification stands, and what came of it."""

    id: str
    enrolment: str
    state: str
    made: int
    begun: int | None
    ended: int | None
    progress: str
    outcome: str | None
    report: str | None
    verdict: dict[str, Any] | None


class Verifications(BaseModel):
    """The verifications of a chain, oldest first."""

    verifications: list[VerificationState]


@router.post("/enrolments/{enrolment}/verifications", status_code=202)
def ask(
    enrolment: EnrolmentId, request: Request, registry: Here, caller: Asking, asked: NewVerification
) -> VerificationState:
    """Ask for a verification; it is done as a job, and asking again shows how far it is."""
    with registry.database.read() as connection:
        _check_may(connection, caller, enrolment)
        if asked.upload is None:
            service.check_complete(registry, connection, enrolment)
    with registry.database.begin() as connection:

        def make() -> dict[str, Any]:
            row = service.ask(registry, connection, enrolment, asked.upload, actor=caller.actor)
            return service.to_json(row)

        return VerificationState(
            **once(registry, connection, request, asked.model_dump(), caller, make)
        )


@router.get("/enrolments/{enrolment}/verifications")
def of_enrolment(enrolment: EnrolmentId, registry: Here, caller: Anyone) -> Verifications:
    """Verifications of a chain, oldest first.

    Those with a verdict are public. The others are for the prover, auditors and operators.
    """
    with registry.database.read() as connection:
        everything = _may_follow(connection, caller, enrolment)
        rows = service.of_enrolment(connection, enrolment)
        shown = [row for row in rows if everything or row.state == service.PUBLIC]
        states = [_state(registry, connection, row) for row in shown]
    return Verifications(verifications=states)


@router.get("/verifications/{verification}")
def one(verification: VerificationId, registry: Here, caller: Anyone) -> VerificationState:
    """How a verification stands, for those who may follow it; its signed verdict, for anybody."""
    with registry.database.read() as connection:
        row = service.find(connection, verification)
        if row.state != service.PUBLIC and not _may_follow(connection, caller, row.enrolment):
            raise Problem(404, "verification.missing", "there is no such verification of yours")
        return _state(registry, connection, row)


@router.get("/verifications/{verification}/report", response_class=HTMLResponse)
def report(verification: VerificationId, registry: Here, caller: Asking) -> Response:
    """The report, as one page."""
    row = _seen(registry, caller, verification)
    if not row.report or not registry.objects.exists(key_of(row.report)):
        raise Problem(404, "verification.no-report", "there is no report of this verification")
    headers = {"content-security-policy": _REPORT_POLICY}
    return HTMLResponse(registry.objects.get(key_of(row.report)), headers=headers)


def _seen(registry: Registry, caller: Caller, verification: str) -> Row[Any]:
    with registry.database.read() as connection:
        row = service.find(connection, verification)
        _check_may(connection, caller, row.enrolment)
    return row


def _state(registry: Registry, connection: Connection, row: Row[Any]) -> VerificationState:
    shown = service.to_json(row)
    settings, now = registry.settings, registry.clock()
    if queue := presence.lacks(connection, settings, now, "verify", row.id):
        shown["progress"] = f"waiting: no worker of this registry serves the queue {queue} now"
    return VerificationState(**shown)


def _may_follow(connection: Connection, caller: Caller, enrolment: str) -> bool:
    """Whether somebody may see what is not decided yet: the prover, auditors, operators."""
    row = row_of(connection, enrolment)
    return caller.looks_after or (caller.identity is not None and caller.identity == row.identity)


def _check_may(connection: Connection, caller: Caller, enrolment: str) -> None:
    """Refuse whoever is neither the prover nor an auditor, as if there were nothing."""
    row = row_of(connection, enrolment)
    if not caller.is_at_least("auditor") and row.identity != caller.identity:
        raise Problem(404, "enrolment.missing", "there is no such enrolment of yours")
