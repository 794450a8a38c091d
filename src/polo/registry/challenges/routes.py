"""`/v1/challenges`, and the challenges of an enrolment."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, Row

from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.challenges import service
from polo.registry.context import Registry
from polo.registry.problems import Problem

router = APIRouter(prefix="/v1", tags=["challenges"])

ChallengeId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
EnrolmentId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Asking = Annotated[Caller, Depends(callers.role("prover", "auditor"))]


class NewAnswer(BaseModel):
    """An answer: a finished upload."""

    model_config = ConfigDict(extra="forbid", strict=True)

    upload: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class ChallengeState(BaseModel):
    """What is asked, until when, and how it stands."""

    id: str
    enrolment: str
    kind: str
    shard: int | None
    state: str
    detail: str
    made: int
    due: int
    ended: int | None
    record: dict[str, Any]


class Challenges(BaseModel):
    """The challenges of a chain, oldest first."""

    challenges: list[ChallengeState]


@router.get("/enrolments/{enrolment}/challenges")
def of_enrolment(
    enrolment: EnrolmentId, registry: Annotated[Registry, Depends(registry_of)], caller: Asking
) -> Challenges:
    """All challenges of a chain, oldest first."""
    with registry.database.read() as connection:
        rows = service.of_enrolment(connection, enrolment)
        shown = [row for row in rows if _may_see(connection, caller, row)]
    return Challenges(challenges=[_state(row) for row in shown])


@router.get("/challenges/{challenge}")
def one(
    challenge: ChallengeId, registry: Annotated[Registry, Depends(registry_of)], caller: Asking
) -> ChallengeState:
    """One challenge."""
    with registry.database.read() as connection:
        if caller.is_at_least("auditor"):
            return _state(service.find(connection, challenge))
        return _state(service.owned(connection, caller.identity or "", challenge))


@router.post("/challenges/{challenge}/answer", status_code=202)
def answer(
    challenge: ChallengeId,
    given: NewAnswer,
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.signed)],
) -> ChallengeState:
    """Answer a challenge with a finished upload; how it ends is seen by asking again."""
    return _state(service.answer(registry, caller.identity or "", challenge, given.upload))


def _may_see(connection: Connection, caller: Caller, row: Row[Any]) -> bool:
    if caller.is_at_least("auditor"):
        return True
    try:
        service.owned(connection, caller.identity or "", row.id)
    except Problem:
        return False
    return True


def _state(row: Row[Any]) -> ChallengeState:
    return ChallengeState(**service.to_json(row))
