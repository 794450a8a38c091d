"""`/v1/uploads`: begin, send pieces, ask how far it is, give up."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from polo.protocol.canonical import MAX_SAFE_INTEGER
from polo.protocol.records import MAX_SHARDS
from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.context import Registry
from polo.registry.uploads import service
from polo.registry.uploads.service import Upload, Wanted

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
UploadId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


class NewUpload(BaseModel):
    """A file that is about to come: its digest and size are fixed now."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enrolment: Hex64
    kind: Literal["opening", "checkpoint", "record", "answer", "proof"]
    shard: Annotated[int, Field(ge=0, le=MAX_SHARDS)] | None = None
    size: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
    sha256: Hex64


class UploadState(BaseModel):
    """How far an upload is."""

    id: str
    enrolment: str
    kind: str
    shard: int | None
    size: int
    sha256: str
    received: int
    state: str
    expires: int


async def _raw(request: Request) -> bytes:
    return await request.body()


@router.post("", status_code=201)
def begin(
    asked: NewUpload,
    response: Response,
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.signed)],
) -> UploadState:
    """Begin an upload, or find the one that was begun for the same file."""
    found = service.begin(registry, caller.identity or "", Wanted(**asked.model_dump()))
    return _state(found, response)


@router.get("/{upload}")
def status(
    upload: UploadId,
    response: Response,
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.signed)],
) -> UploadState:
    """How far an upload is."""
    return _state(service.get(registry, caller.identity or "", upload), response)


@router.patch(
    "/{upload}",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        }
    },
)
def append(
    upload: UploadId,
    response: Response,
    offset: Annotated[int, Header(alias="Upload-Offset", ge=0, le=MAX_SAFE_INTEGER)],
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.signed)],
    data: Annotated[bytes, Depends(_raw)],
) -> UploadState:
    """Send the next piece; with the last one the file is checked and stored."""
    found = service.append(registry, caller.identity or "", upload, offset, data)
    return _state(found, response)


@router.delete("/{upload}", status_code=204)
def cancel(
    upload: UploadId,
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.signed)],
) -> None:
    """Give up an upload that is not finished."""
    service.cancel(registry, caller.identity or "", upload)


def _state(upload: Upload, response: Response) -> UploadState:
    response.headers["Upload-Offset"] = str(upload.received)
    return UploadState(**{name: getattr(upload, name) for name in UploadState.model_fields})
