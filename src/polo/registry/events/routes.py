"""`/v1/events`: what was done, for auditors and operators."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from polo.registry.callers import Caller, registry_of, role
from polo.registry.context import Registry
from polo.registry.events import service
from polo.registry.lines import ONE_LINE
from polo.registry.paging import Limit, Page

router = APIRouter(prefix="/v1/events", tags=["events"])


class EventView(BaseModel):
    """One thing that somebody did."""

    id: int
    time: int
    actor: str = Field(description="An identity's id, `token <id>`, or `registry`.")
    action: str = Field(description="A word such as `identity.revoked`.")
    subject: str = Field(description="Id of what it was done to.")
    detail: str
    request: str | None = Field(description="The request's id, as in the registry's log.")


@router.get("", summary="List what was done")
def index(
    registry: Annotated[Registry, Depends(registry_of)],
    _: Annotated[Caller, Depends(role("auditor"))],
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Limit = 100,
    subject: Annotated[str | None, Query(max_length=64, pattern=ONE_LINE)] = None,
) -> Page[EventView]:
    """In the order it happened; events are never changed or removed."""
    with registry.database.read() as connection:
        found = service.page(connection, after=after, limit=limit, subject=subject)
    following = str(found[-1].id) if len(found) == limit else None
    return Page[EventView](items=[EventView(**asdict(item)) for item in found], next=following)
