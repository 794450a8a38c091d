"""`/log/…` as C2SP tlog-tiles has it, and proofs under `/v1/log`. All of it is public."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from polo.errors import FormatError
from polo.protocol.log_tiles import Tile
from polo.protocol.log_tree import MAX_SIZE
from polo.registry.callers import registry_of
from polo.registry.context import Registry
from polo.registry.log import keys, service
from polo.registry.problems import Problem

router = APIRouter(tags=["log"])

Here = Annotated[Registry, Depends(registry_of)]
Size = Annotated[int, Query(ge=0, le=MAX_SIZE)]
FOREVER = "public, max-age=31536000, immutable"
"""For what never changes: tiles, whole or in part, hold the same bytes for ever."""

_BRIEFLY = "public, max-age=1, must-revalidate"
_TEXT = "text/plain; charset=utf-8"


class InclusionView(BaseModel):
    """That an entry is in the log."""

    index: int
    size: int = Field(description="Size of the tree that the path leads to the root of.")
    path: list[str] = Field(description="Hashes from the leaf up (RFC 6962).")
    checkpoint: str | None = Field(
        description="The checkpoint of that size, with its cosignatures; null if none was signed."
    )


class ConsistencyView(BaseModel):
    """That an older tree is the beginning of a newer one."""

    old: int
    new: int
    path: list[str]


class RolloversView(BaseModel):
    """How the log's key changed."""

    rollovers: list[str] = Field(
        description="For each change a note that the old and the new key signed, oldest first."
    )


class CosignedView(BaseModel):
    """Whose cosignatures are kept."""

    size: int
    witnesses: list[str]


@router.get("/log/checkpoint", response_class=Response, summary="The newest checkpoint")
def checkpoint(
    request: Request,
    registry: Here,
    quorum: Annotated[int, Query(ge=0, le=64, description="Fewest cosignatures under it.")] = 0,
) -> Response:
    """The newest one, or the newest with so many cosignatures, as a signed note."""
    with registry.database.read() as connection:
        head = service.cosigned(connection, quorum=quorum) if quorum else None
        if quorum and head is None:
            raise Problem(404, "log.missing", f"no checkpoint has {quorum} cosignatures yet")
        head = head or service.current(connection)
        text = service.with_cosignatures(connection, head)
    return _cached(request, text.encode(), _BRIEFLY, f"{head.size}-{len(text)}", _TEXT)


@router.get("/log/tile/{path:path}", response_class=Response, summary="A tile or a bundle")
def tile(request: Request, path: str, registry: Here) -> Response:
    """256 hashes, or 256 entries; `.p/<width>` at the end asks for a part of the last one."""
    try:
        wanted = Tile.parse(f"tile/{path}", place="path")
    except FormatError as error:
        raise Problem(404, "log.missing", "no tile has such a path") from error
    tag = f"{wanted.level}-{wanted.index}-{wanted.width}"
    with registry.database.read() as connection:
        data = service.tile(connection, wanted)
    return _cached(request, data, FOREVER, tag, "application/octet-stream")


@router.get("/v1/log/inclusion", summary="Where an entry is")
def inclusion(
    registry: Here,
    index: Annotated[int, Query(ge=0, le=MAX_SIZE - 1)],
    size: Annotated[int | None, Query(ge=1, le=MAX_SIZE)] = None,
    quorum: Annotated[int, Query(ge=0, le=64, description="Fewest cosignatures.")] = 0,
) -> InclusionView:
    """The path to the root of a size; by default of the newest, or the first with a quorum."""
    with registry.database.read() as connection:
        newest = service.current(connection)
        head = service.cosigned(connection, index=index, quorum=quorum) if quorum else newest
        if head is None:
            raise Problem(404, "log.missing", f"no checkpoint over it has {quorum} cosignatures")
        wanted = head.size if size is None else size
        if not index < wanted <= newest.size:
            raise Problem(
                404, "log.missing", f"entry {index} of {wanted} in a log of {newest.size}"
            )
        signed = head if wanted == head.size else service.at_size(connection, wanted)
        path = service.inclusion(connection, index, wanted)
        note = service.with_cosignatures(connection, signed) if signed else None
    return InclusionView(
        index=index, size=wanted, path=[item.hex() for item in path], checkpoint=note
    )


@router.get("/v1/log/consistency", summary="That the log only grew")
def consistency(registry: Here, old: Size, new: Size) -> ConsistencyView:
    """The proof between two sizes."""
    with registry.database.read() as connection:
        head = service.newest(connection)
        if not old <= new <= (head.size if head else 0):
            raise Problem(404, "log.missing", f"sizes {old} and {new} of a log")
        path = service.consistency(connection, old, new)
    return ConsistencyView(old=old, new=new, path=[item.hex() for item in path])


@router.get("/v1/log/rollovers", summary="How the log's key changed")
def rollovers(registry: Here) -> RolloversView:
    """Who knows one of the log's keys learns of the others here, by what the keys signed."""
    with registry.database.read() as connection:
        return RolloversView(rollovers=keys.rollovers(connection))


@router.post(
    "/v1/log/cosignatures",
    summary="Cosign a checkpoint",
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "The checkpoint as a note, with the witness's line.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def cosign(request: Request, registry: Here) -> CosignedView:
    """By a witness that the operator named; its line is what shows that it is one."""
    body = await request.body()
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Problem(422, "log.not-cosigned", "the note is not UTF-8") from error
    return await run_in_threadpool(_cosign, registry, text)


def _cosign(registry: Registry, text: str) -> CosignedView:
    with registry.database.begin() as connection:
        size, names = service.cosign(
            connection, text, registry.settings.witnesses, registry.clock()
        )
    return CosignedView(size=size, witnesses=names)


def _cached(request: Request, data: bytes, control: str, tag: str, kind: str) -> Response:
    """An answer that may be kept, or that the one at hand is still right."""
    headers = {"Cache-Control": control, "ETag": f'"{tag}"'}
    # Browsers of other sites may read it, too: it is public and no cookie changes it.
    headers |= {"Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=kind)
