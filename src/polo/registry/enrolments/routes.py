"""`/v1/enrolments`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from polo.protocol.effort import DataRecord
from polo.protocol.layout import Layout
from polo.protocol.records import Enrolment
from polo.registry import callers
from polo.registry.callers import Caller, registry_of, request_id
from polo.registry.commitments.sequencer import LOCK
from polo.registry.context import Registry
from polo.registry.enrolments import closing, service
from polo.registry.enrolments.service import Enrolled
from polo.registry.idempotency import once
from polo.registry.paging import Limit, Page
from polo.registry.problems import Problem
from polo.registry.uploads import retention
from polo.registry.verifications import service as verifications

router = APIRouter(prefix="/v1/enrolments", tags=["enrolments"])

Here = Annotated[Registry, Depends(registry_of)]
Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Id = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The enrolment's digest.")]
State = Literal["open", "closed", "failed", "withdrawn"]


class Asked(BaseModel):
    """What a prover may choose; everything else is the operator's."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(min_length=1, max_length=128)
    bits: int | None = Field(default=None, ge=8, le=2**17, description="Bits of each mark.")
    data: dict[str, Any] | None = Field(
        default=None, description="A polo/data/1 record, where the terms ask for level replay."
    )
    parent: Hex32 | None = Field(
        default=None, description="Enrolment of the closed chain that training goes on from."
    )


class Summary(BaseModel):
    """An enrolment, in a list."""

    id: str
    identity: str
    task: str
    state: State
    shards: int = Field(description="Receipts given, without that of the start.")
    issued: int
    changed: int
    parent: str | None


class View(Summary):
    """An enrolment with its records."""

    enrolment: dict[str, Any] = Field(description="The signed polo/enrolment/1 record.")
    layout: dict[str, Any] = Field(description="The polo/layout/1 record.")
    files: int = Field(description="Uploaded files that the registry holds of the chain.")
    keep_until: int | None = Field(
        description="When they are removed, by the terms; null while the chain is open."
    )
    removed: int | None = Field(description="When files were removed last; null if none were.")
    verdict: str | None = Field(
        description="What the newest verification came to: accepted, rejected or undecided."
    )


class SecretView(BaseModel):
    """The secret that all nonces of a chain come from."""

    secret: str


@router.post("", status_code=201, summary="Enrol")
async def enrol(
    request: Request,
    body: Asked,
    registry: Here,
    caller: Annotated[Caller, Depends(callers.signed)],
) -> View:
    """The registry signs terms for the identity that asks."""
    data = None if body.data is None else DataRecord.from_json(body.data, "data")
    return await run_in_threadpool(_enrol, request, body, data, registry, caller)


def _enrol(
    request: Request, body: Asked, data: DataRecord | None, registry: Registry, caller: Caller
) -> View:
    assert caller.identity is not None
    assert caller.key is not None
    # Both may take seconds, and nobody must wait for the lock then.
    layout = registry.tasks.get(body.task).terms.layout
    start = None
    if body.parent is not None:
        with registry.database.read() as connection:
            start = service.last_root(connection, body.parent, layout)
    identity, key = caller.identity, caller.key
    with registry.database.begin() as connection:

        def make() -> dict[str, Any]:
            made = service.make(
                registry,
                connection,
                identity=identity,
                key=key,
                task=body.task,
                bits=body.bits,
                data=data,
                parent=body.parent,
                start=start,
                request=request_id(request),
            )
            return {"id": made.id}

        told = once(registry, connection, request, body.model_dump(), caller, make)
        return _view(connection, service.get(connection, told["id"]))


@router.get("", summary="Enrolments, in pages")
def listed(
    registry: Here,
    caller: Annotated[Caller, Depends(callers.role("prover", "auditor", "operator"))],
    after: Annotated[str, Query(pattern="^[0-9a-f]{0,64}$")] = "",
    limit: Limit = 50,
    state: State | None = None,
) -> Page[Summary]:
    """A prover sees its own; auditors and operators see all."""
    everybody = caller.is_at_least("auditor")
    with registry.database.read() as connection:
        found = service.page(
            connection,
            identity=None if everybody else caller.identity or "",
            state=state,
            after=after,
            limit=limit,
        )
    items = [Summary(**_summary(item)) for item in found]
    return Page(items=items, next=items[-1].id if len(items) == limit else None)


@router.get("/{enrolment}", summary="One enrolment")
def shown(enrolment: Id, registry: Here) -> View:
    """Anybody may see it: whoever audits the log needs the key that signed its entries."""
    with registry.database.read() as connection:
        return _view(connection, service.get(connection, enrolment))


@router.post(
    "/{enrolment}/close",
    summary="Close a chain",
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "The canonical bytes of the manifest.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    },
)
async def close(
    request: Request,
    enrolment: Id,
    registry: Here,
    caller: Annotated[Caller, Depends(callers.signed)],
) -> Summary:
    """With its manifest, which must say what was committed to, with every receipt."""
    data = await request.body()
    return await run_in_threadpool(_close, request, enrolment, registry, caller, data)


def _close(
    request: Request, enrolment: str, registry: Registry, caller: Caller, data: bytes
) -> Summary:
    with registry.database.read() as connection:
        found = _own(service.get(connection, enrolment), caller)
    # It takes long, and nobody must wait for the lock then.
    manifest = closing.read(Enrolment.from_bytes(found.record, "enrolment"), data)
    with registry.database.begin() as connection:
        # No entry may get in between the look at the commitments and the close.
        registry.database.lock(connection, LOCK)
        found = service.get(connection, enrolment)
        closed = service.close(registry, connection, found, manifest, request_id(request))
    return Summary(**_summary(closed))


@router.post("/{enrolment}/withdraw", summary="Give a chain up")
def withdraw(
    request: Request,
    enrolment: Id,
    registry: Here,
    caller: Annotated[Caller, Depends(callers.signed)],
) -> Summary:
    """What is in the log stays there."""
    with registry.database.begin() as connection:
        registry.database.lock(connection, LOCK)
        found = _own(service.get(connection, enrolment), caller)
        given_up = service.withdraw(registry, connection, found, request_id(request))
    return Summary(**_summary(given_up))


@router.get("/{enrolment}/secret", summary="The secret of a chain")
def secret(
    enrolment: Id,
    registry: Here,
    caller: Annotated[Caller, Depends(callers.role("prover", "auditor", "operator"))],
) -> SecretView:
    """For its prover and for auditors, once the chain gets no more receipts."""
    with registry.database.read() as connection:
        found = service.get(connection, enrolment)
        if not caller.is_at_least("auditor"):
            _own(found, caller)
        return SecretView(secret=service.secret(registry, connection, found).hex())


def _own(found: Enrolled, caller: Caller) -> Enrolled:
    if caller.identity != found.identity:
        raise Problem(403, "enrolment.not-yours", "this is another identity's enrolment")
    return found


def _summary(found: Enrolled) -> dict[str, Any]:
    return {name: getattr(found, name) for name in Summary.model_fields}


def _view(connection: Connection, found: Enrolled) -> View:
    kept = retention.standing(connection, found.id)
    return View(
        **_summary(found),
        files=kept.files,
        keep_until=kept.until,
        removed=kept.removed,
        verdict=verifications.latest(connection, found.id),
        enrolment=Enrolment.from_bytes(found.record, "enrolment").to_json(),
        layout=Layout.from_bytes(found.layout, "layout").to_json(),
    )
