"""“Whose model is this?”: a file comes in, is scanned as a job, and the result has its page."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool

from polo.registry import callers, schema
from polo.registry.callers import registry_of, request_id
from polo.registry.context import Registry
from polo.registry.pages import forms, queries, receiving, render
from polo.registry.problems import Problem
from polo.registry.scans import room, service

router = APIRouter(include_in_schema=False)

Here = Annotated[Registry, Depends(registry_of)]

MOST_WAITING = 20
"""Scans of found files that may wait at the same time."""

MOST_RECEIVED = 4
"""Files that are taken at the same time, so that slow ones do not fill the disk together."""

COST = 20
"""Requests that a scan counts for."""

FOLDER = "found"
_receiving = 0


@dataclass(frozen=True)
class Claim:
    """A chain whose marks are in the file."""

    enrolment: str
    name: str
    task: str
    issued: int | None
    eta: float | None
    marks: int
    bits: int
    log2_p: float | None
    coverage: float
    state: str


@dataclass(frozen=True)
class ScanView:
    """What came of a scan."""

    chains: int
    unread: int
    power: float | None
    problem: str
    description: str
    claims: Sequence[Claim]


@router.get("/whose")
def whose(request: Request, registry: Here) -> HTMLResponse:
    """The form that takes a file."""
    return _form(request, registry)


@router.post("/whose")
async def scan(request: Request, registry: Here) -> Response:
    """Takes a file, and puts its scan in."""
    forms.check_origin(request, registry)
    cookie = request.cookies.get(forms.cookie_name(registry), "")
    asked = f"visitor {callers.csrf_token(cookie)[:16]}"
    await run_in_threadpool(_admit, request, registry, asked)

    def check(fields: dict[str, str]) -> None:
        forms.check_word(fields.get(callers.CSRF_FIELD, ""), cookie)

    folder, most = registry.settings.data / FOLDER, _most(registry)
    said = request.headers.get("content-length", "")
    size = min(int(said), most) if said.isdecimal() else most
    with (
        _turn(),
        receiving.temporary(folder) as path,
        room.promised(folder, size) as wrote,
    ):
        count = await receiving.into_file(request, path, most=most, check=check, wrote=wrote)
        if count == 0:
            return await run_in_threadpool(_form, request, registry, "No file was chosen.", 400)
        key = await run_in_threadpool(_begin, request, registry, asked, path)
    return RedirectResponse(f"/whose/{key}", 303, headers=render.HEADERS)


@router.get("/whose/{key}")
def result(request: Request, registry: Here, key: str) -> HTMLResponse:
    """A scan in progress, then what it found."""
    return _result(request, registry, key, "scan.html")


@router.get("/whose/{key}/live")
def result_live(request: Request, registry: Here, key: str) -> HTMLResponse:
    """The part of a scan's page that changes."""
    return _result(request, registry, key, "scan_live.html")


def view(result: Mapping[str, Any]) -> ScanView:
    """The page's view of a stored result."""
    return ScanView(
        chains=int(result.get("chains") or 0),
        unread=int(result.get("unread") or 0),
        power=result.get("power"),
        problem=str(result.get("problem") or ""),
        description=str(result.get("description") or ""),
        claims=[_claim(item) for item in result.get("claims") or ()],
    )


def _claim(item: Mapping[str, Any]) -> Claim:
    return Claim(
        enrolment=str(item["enrolment"]),
        name=str(item.get("name") or "–"),
        task=str(item.get("task") or "–"),
        issued=item.get("issued"),
        eta=item.get("eta"),
        marks=int(item.get("marks") or 0),
        bits=int(item.get("bits") or 0),
        log2_p=item.get("log2_p"),
        coverage=float(item.get("coverage") or 0),
        state=str(item.get("state") or ""),
    )


def _most(registry: Registry) -> int:
    """Bytes of a file that somebody who has not signed in may have scanned."""
    return min(registry.settings.max_found, registry.settings.max_upload)


def _form(
    request: Request, registry: Registry, problem: str = "", status: int = 200
) -> HTMLResponse:
    word, fresh = forms.guest_word(request, registry)
    most = _most(registry)
    values = {"csrf": word, "problem": problem, "most": most}
    response = render.answer(request, "whose.html", values, status=status)
    forms.remember(response, registry, fresh)
    return response


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One of the few places for files that are coming in; the event loop alone comes here."""
    global _receiving
    if _receiving >= MOST_RECEIVED:
        raise _busy("others are sending files at this moment")
    _receiving += 1
    try:
        yield
    finally:
        _receiving -= 1


def _busy(detail: str) -> Problem:
    advice = "Try again in some minutes."
    headers = {"Retry-After": "120", "Connection": "close"}
    return Problem(503, "registry.busy", detail, advice=advice, headers=headers)


def _admit(request: Request, registry: Registry, asked: str) -> None:
    """Let a scan cost more than a look, and refuse it while many wait."""
    service.check_waiting(registry, asked)
    registry.limits.addresses.take(getattr(request.state, "address", ""), COST)
    table = schema.scans
    waiting = select(func.count()).where(
        table.c.state.in_(queries.WAITING), table.c.enrolment.is_(None)
    )
    with registry.database.read() as connection:
        count = connection.execute(waiting).scalar() or 0
    if count >= MOST_WAITING:
        raise _busy("many files wait to be scanned")


def _begin(request: Request, registry: Registry, asked: str, path: Path) -> str:
    return service.found(registry, path, asked, request=request_id(request)).id


def _result(request: Request, registry: Registry, key: str, template: str) -> HTMLResponse:
    with registry.database.read() as connection:
        found = queries.scan(connection, key)
    # Scans of a prover's own chain are for the prover: they have no page.
    if found is None or found[0].enrolment is not None:
        raise Problem(404, "resource.missing", "There is no such scan.")
    item, stored = found
    values = {
        "item": item,
        "scan": view(stored) if stored is not None else None,
        "busy": item.state in queries.WAITING,
        "saying": "The scan has ended." if stored is not None else "",
    }
    return render.answer(request, template, values)
