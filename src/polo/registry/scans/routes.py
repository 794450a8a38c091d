"""`/v1/scans`: whose marks are in a chain's last checkpoint, or in a found file."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from polo.registry import callers
from polo.registry.callers import GUEST, Caller, registry_of, request_id
from polo.registry.context import Registry
from polo.registry.problems import Problem
from polo.registry.scans import room, service

router = APIRouter(prefix="/v1/scans", tags=["scans"])

ScanId = Annotated[str, InPath(pattern=r"^[0-9a-f]{32}$")]
RAW = "application/octet-stream"
MOST_RECEIVED = 4
"""Found files that are taken at the same time."""

COST = 20
"""Requests that a file counts for whose signature can only be checked at its end."""

_receiving = 0


class About(BaseModel):
    """A chain whose last checkpoint is to be looked at."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enrolment: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


_BODY: dict[str, Any] = {
    "security": callers.KNOWN,
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": About.model_json_schema()},
            RAW: {"schema": {"type": "string", "format": "binary"}},
        },
    },
}


@router.post("", status_code=202, openapi_extra=_BODY)
async def ask(
    request: Request, registry: Annotated[Registry, Depends(registry_of)]
) -> dict[str, Any]:
    """Ask for a scan of a chain's last checkpoint, or of a safetensors file sent as it is.

    A file is removed when the scan is over.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == RAW:
        return (await _ask_found(request, registry)).to_json()
    # Before anything reads it: whoever signs has the whole body read into memory.
    _size(request, registry.settings.max_body)
    caller = await _known(request)
    try:
        body = About.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        raise Problem(422, "body.invalid", str(first["msg"])[:300]) from error
    asking = request_id(request)
    made = await run_in_threadpool(service.about, registry, body.enrolment, caller, request=asking)
    return made.to_json()


@router.get("/{scan}")
def show(
    scan: ScanId,
    registry: Annotated[Registry, Depends(registry_of)],
    caller: Annotated[Caller, Depends(callers.anyone)],
) -> dict[str, Any]:
    """How a scan stands; for whoever asked, the chain's owner, auditors and operators."""
    with registry.database.read() as connection:
        found = service.get(connection, scan)
    if caller is GUEST or not (caller.actor == found.asked or caller.is_at_least("auditor")):
        raise Problem(404, "scan.missing", "there is no such scan of yours")
    return found.to_json()


async def _known(request: Request) -> Caller:
    caller = await callers.anyone(request)
    if caller is GUEST:
        raise Problem(401, "caller.missing", "scans are for those who are registered")
    callers.check_scope(caller, "write")
    return caller


async def _ask_found(request: Request, registry: Registry) -> service.Scan:
    """Take a file. A signature covers its digest, so it is checked when all of it is here."""
    global _receiving
    size, begun = _size(request, registry.settings.max_upload), registry.clock()
    signed = request.headers.get("authorization", "").startswith("PoLO ")
    caller = None if signed else await _known(request)
    if signed:
        # Nobody knows yet who signs: until then it is the address that pays, before it sends.
        await run_in_threadpool(callers.claimed, request, registry)
        registry.limits.addresses.take(getattr(request.state, "address", ""), COST)
    if _receiving >= MOST_RECEIVED:
        raise Problem(
            503, "registry.busy", "other files are coming in", headers={"Retry-After": "5"}
        )
    folder = registry.settings.data / "scans"
    await run_in_threadpool(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    _receiving += 1
    try:
        with room.promised(folder, size) as wrote, tempfile.TemporaryDirectory(dir=folder) as own:
            file = Path(own) / "found"
            digest = await _receive(request, file, size, wrote)
            if caller is None:
                caller = await callers.signed_over(request, digest, begun)
            asking = request_id(request)
            await run_in_threadpool(service.check_waiting, registry, caller.actor)
            return await run_in_threadpool(
                service.found, registry, file, caller.actor, request=asking
            )
    finally:
        _receiving -= 1


def _size(request: Request, most: int) -> int:
    """How many bytes will come; refused if nobody says, or if they are too many."""
    said = request.headers.get("content-length", "")
    if not said:
        raise Problem(411, "scan.size", "nobody says how many bytes will come")
    if not said.isdecimal() or not 0 < int(said) <= most:
        raise Problem(413, "scan.size", f"{said[:20]} bytes; at most {most}")
    return int(said)


async def _receive(request: Request, file: Path, size: int, wrote: Callable[[int], None]) -> bytes:
    """Write the body to a file; its digest."""
    state, received = hashlib.sha256(), 0
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as out:
        async for piece in request.stream():
            received += len(piece)
            if received > size:
                break
            state.update(piece)
            await asyncio.to_thread(out.write, piece)
            wrote(len(piece))
    if received != size:
        raise Problem(400, "scan.size", f"{received} bytes came instead of {size}")
    return state.digest()
