"""The pages that everybody may see."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from polo.protocol.log_notes import NoteKey
from polo.protocol.records import LEVELS, MAX_SHARDS
from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.context import Registry
from polo.registry.jobs import presence
from polo.registry.pages import chain_page, queries, render, start, terms, verdicts
from polo.registry.problems import Problem
from polo.registry.vault import LOG

router = APIRouter(include_in_schema=False)
"""Pages are no part of the API's description."""

Here = Annotated[Registry, Depends(registry_of)]
Anyone = Annotated[Caller, Depends(callers.anyone)]
_CURSOR = re.compile(r"([0-9]{1,12})-([0-9a-f]{1,64})")
_STATIC = {"registry.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"}


@router.get("/")
def home(request: Request, registry: Here) -> HTMLResponse:
    """What this registry is, its latest chains, and how to start."""
    with registry.database.read() as connection:
        found = {"chains": queries.chains(connection, limit=10), "head": queries.head(connection)}
    url = registry.settings.public_url
    shared = {"origin": registry.settings.origin, "commands": start.commands(url)}
    return render.answer(request, "home.html", {**found, **shared, "levels": terms.texts(LEVELS)})


@router.get("/chains")
def chains(request: Request, registry: Here, before: str = "") -> HTMLResponse:
    """All chains, page by page."""
    cursor = _CURSOR.fullmatch(before)
    if before and cursor is None:
        raise _nothing("That is no place in the list of chains.")
    place = (int(cursor[1]), cursor[2]) if cursor else None
    with registry.database.read() as connection:
        found = queries.chains(connection, before=place, limit=queries.PAGE + 1)
    more = len(found) > queries.PAGE
    last = found[queries.PAGE - 1] if more else None
    shown = {
        "chains": found[: queries.PAGE],
        "paged": bool(place),
        "older": f"{last.issued}-{last.id}" if last else None,
    }
    return render.answer(request, "chains.html", shown)


@router.get("/chains/{key}")
def chain(request: Request, registry: Here, caller: Anyone, key: str, to: str = "") -> HTMLResponse:
    """A chain as it grows."""
    with registry.database.read() as connection:
        shown = chain_page.shown(connection, key, _shard(to), everything=caller.looks_after)
    if shown is None:
        raise _nothing("There is no chain with this id.")
    return render.answer(request, "chain.html", shown.values)


@router.get("/chains/{key}/live")
def chain_live(request: Request, registry: Here, caller: Anyone, key: str) -> Response:
    """The part of a chain's page that changes; 304 as long as it has not."""
    known = request.headers.get("if-none-match")
    with registry.database.read() as connection:
        shown = chain_page.shown(connection, key, unless=known, everything=caller.looks_after)
    if shown is None:
        raise _nothing("There is no chain with this id.")
    headers = {"ETag": shown.tag}
    if shown.tag == known:
        return Response(status_code=304, headers={**render.HEADERS, **headers})
    return render.page(shown.live, headers=headers)


@router.get("/verifications/{key}")
def verification(request: Request, registry: Here, caller: Anyone, key: str) -> HTMLResponse:
    """A verification in progress, for auditors and operators, then its verdict, for everybody."""
    return _verification(request, registry, caller, key, "verification.html")


@router.get("/verifications/{key}/live")
def verification_live(request: Request, registry: Here, caller: Anyone, key: str) -> HTMLResponse:
    """The part of a verification's page that changes."""
    return _verification(request, registry, caller, key, "verification_live.html")


@router.get("/log")
def log(request: Request, registry: Here, before: str = "") -> HTMLResponse:
    """The log: its latest checkpoint, its witnesses, its entries."""
    if before and not re.fullmatch(r"[0-9]{1,15}", before):
        raise _nothing("That is no place in the log.")
    place = int(before) if before else None
    with registry.database.read() as connection:
        lines = queries.log_lines(connection, before=place, limit=queries.PAGE + 1)
        values = {"head": queries.head(connection), "witnessed": queries.witnessed(connection)}
        keys = [item for item in registry.vault.published(connection) if item.use == LOG]
    more = len(lines) > queries.PAGE
    shown = {
        "lines": lines[: queries.PAGE],
        "paged": place is not None,
        "older": lines[queries.PAGE - 1].index if more else None,
        "url": registry.settings.public_url,
        "keys": [(NoteKey(registry.settings.origin, item.key).text, item) for item in keys],
    }
    return render.answer(request, "log.html", {**values, **shown})


@router.get("/static/{version}/{name}")
def static(version: str, name: str) -> Response:
    """The style sheet or the script; the address changes with the file."""
    if name not in _STATIC or render.asset(name) != f"/static/{version}/{name}":
        raise _nothing("There is no such file.")
    headers = {**render.HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(render.content(name), media_type=_STATIC[name], headers=headers)


def _verification(
    request: Request, registry: Registry, caller: Caller, key: str, template: str
) -> HTMLResponse:
    settings, now = registry.settings, registry.clock()
    with registry.database.read() as connection:
        found = queries.verification(connection, key)
        if found is None or not (found.line.is_public or caller.looks_after):
            raise _nothing("There is no such verification, or it has no verdict yet.")
        lacks = presence.lacks(connection, settings, now, "verify", key)
    item = found.line
    verdict = verdicts.view(found.verdict, found.start) if found.verdict else None
    values = {
        "item": item,
        "verdict": verdict,
        "busy": item.state in queries.WAITING,
        "lacks": lacks,
        "saying": f"Verdict: {verdict.outcome}." if verdict else item.progress,
    }
    return render.answer(request, template, values)


def _shard(text: str) -> int | None:
    number = int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None
    return number if number is not None and number <= MAX_SHARDS else None


def _nothing(detail: str) -> Problem:
    return Problem(404, "resource.missing", detail)
