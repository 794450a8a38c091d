"""Lists come in pages: `after` is the `next` of the page before, `limit` how many there are."""

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

MOST = 200

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=MOST, description="How many to answer at most.")]


class Page(BaseModel, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = Field(
        default=None, description="Give it as `after` to get the next page; null on the last one."
    )
