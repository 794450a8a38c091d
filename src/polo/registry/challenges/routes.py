"""`/v1/challenges`, and the challenges of an enrolment."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row

from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.challenges import service
from polo.registry.commitments.service import owner_of
from polo.registry.context import Registry

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
    """All challenges of a chain, oldest first; none of somebody else's chain."""
    with registry.database.read() as connection:
        mine = caller.identity is not None and caller.identity == owner_of(connection, enrolment)
        seen = mine or caller.is_at_least("auditor")
        rows = service.of_enrolment(connection, enrolment) if seen else []
    return Challenges(challenges=[_state(row) for row in rows])


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


@router.post("/challenges/{challenge}/check", status_code=202)
def check_again(
    request: Request,
    challenge: ChallengeId,
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.role("operator"))],
) -> ChallengeState:
    """Check an answer again that the registry could not check; how it ends is seen by asking."""
    with registry.database.begin() as connection:
        row = service.check_again(
            registry,
            connection,
            challenge,
            actor=caller.actor,
            request=callers.request_id(request),
            now=registry.clock(),
        )
    return _state(row)


def _state(row: Row[Any]) -> ChallengeState:
    return ChallengeState(**service.to_json(row))
