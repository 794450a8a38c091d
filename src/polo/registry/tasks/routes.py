"""`/v1/tasks`."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field

from polo.errors import PoloError
from polo.registry.callers import registry_of
from polo.registry.context import Registry
from polo.registry.tasks.service import Offered

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])

Here = Annotated[Registry, Depends(registry_of)]


class BitsView(BaseModel):
    """How large marks may be."""

    usual: int
    least: int
    most: int


class TaskView(BaseModel):
    """A task, as it is offered."""

    name: str
    version: int
    metric: str
    floor: list[int] = Field(description="Least metric of shard 1, 2, …, in millionths.")
    layout: str = Field(description="Digest of the layout of its model's checkpoints.")
    bytes: int = Field(description="Bytes of one checkpoint.")
    levels: list[str] = Field(description="Levels of evidence that it can serve.")
    asked: list[str] = Field(description="Levels that an enrolment here asks for.")
    history: str
    shards: int = Field(description="Most shards.")
    bits: BitsView
    needs_data: bool = Field(description="Whether an enrolment must name the data's root.")


class TaskList(BaseModel):
    """What is offered, and what is offered but cannot be used at the moment."""

    items: list[TaskView]
    broken: dict[str, str] = Field(description="Why a task cannot be used, by its name.")


class TaskDetail(TaskView):
    """A task with the terms that an enrolment would have."""

    terms: dict[str, Any] = Field(description="The terms, without level receipts.")


@router.get("", summary="What can be enrolled for")
def listed(registry: Here) -> TaskList:
    """The first time after a task was installed this takes seconds."""
    items, broken = [], {}
    for name in sorted(registry.tasks.offers):
        try:
            items.append(TaskView(**_view(registry.tasks.get(name))))
        except PoloError as error:
            broken[name] = str(error)
    return TaskList(items=items, broken=broken)


@router.get("/{name}", summary="One task")
def shown(
    name: Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")],
    registry: Here,
) -> TaskDetail:
    """With its terms."""
    offered = registry.tasks.get(name)
    return TaskDetail(**_view(offered), terms=offered.terms.to_json())


def _view(offered: Offered) -> dict[str, Any]:
    terms, offer = offered.terms, offered.offer
    levels = {item.level for item in terms.evidence} | {"receipts"}
    levels |= {"replay"} if offer.recipe is not None else set()
    bits = {"usual": terms.scheme.bits, "least": offer.bits.least, "most": offer.bits.most}
    return {
        "name": terms.task.name,
        "version": terms.task.version,
        "metric": terms.task.metric,
        "floor": list(terms.task.floor),
        "layout": terms.layout.hex(),
        "bytes": offered.layout.size,
        "levels": list(offered.levels),
        "asked": sorted(levels),
        "history": offer.history,
        "shards": terms.shards.most,
        "bits": bits,
        "needs_data": offer.recipe is not None,
    }
