"""The pages for those who run the registry: signing in, looking, and acting.

Everything that changes something is a form, and `callers` refuses one without its session's word.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from polo.registry import callers
from polo.registry.callers import Caller, registry_of, request_id
from polo.registry.challenges import service as challenges
from polo.registry.context import Registry
from polo.registry.identities import service as identities
from polo.registry.pages import desk, forms, render
from polo.registry.problems import Problem
from polo.registry.tokens import service as tokens

router = APIRouter(include_in_schema=False)

Here = Annotated[Registry, Depends(registry_of)]

DONE = {
    "challenge": "The answer will be checked again.",
    "identity": "The identity was revoked.",
    "job": "The job will be done again.",
    "token": "The token was revoked.",
    "verification": "A verification was asked for.",
}
"""What the page says after an action; addresses carry only the word."""


async def reader(request: Request) -> Caller:
    """An auditor or operator; whoever has not signed in is sent to do so."""
    try:
        return await callers.role("auditor")(request)
    except Problem as problem:
        if problem.status == 401:
            raise HTTPException(303, headers={"Location": "/login"}) from None
        raise


Reader = Annotated[Caller, Depends(reader)]
Operator = Annotated[Caller, Depends(callers.role("operator"))]
Admin = Annotated[Caller, Depends(callers.role("operator", scope="admin"))]


@router.get("/login")
def login(request: Request, registry: Here) -> HTMLResponse:
    """The form to sign in."""
    return _login_page(request, registry)


@router.post("/login")
async def sign_in(request: Request, registry: Here) -> Response:
    """Signs in with a token."""
    form = await forms.of_guest(request, registry)
    return await run_in_threadpool(_sign_in, request, registry, forms.text(form, "token"))


@router.post("/logout")
async def sign_out(request: Request, registry: Here, caller: Reader) -> Response:
    """Ends the session."""
    if caller.session is not None:
        await run_in_threadpool(_sign_out, registry, caller.session)
    response = RedirectResponse("/", 303, headers=render.HEADERS)
    response.delete_cookie(callers.cookie_name(registry), secure=registry.settings.secure)
    return response


@router.get("/operator")
def operator(request: Request, registry: Here, caller: Reader, done: str = "") -> HTMLResponse:
    """Enrolments, open challenges, jobs, tokens and events."""
    return _desk(request, registry, caller, said=DONE.get(done, ""))


@router.post("/operator/tokens")
async def make_token(request: Request, registry: Here, caller: Admin) -> HTMLResponse:
    """Makes a token, and shows it this once."""
    form = await request.form()
    return await run_in_threadpool(_make_token, request, registry, caller, form)


@router.post("/operator/tokens/{token}/revoke")
def revoke_token(request: Request, registry: Here, caller: Admin, token: str) -> Response:
    """Ends a token and its sessions."""
    return _act(request, registry, caller, "token", lambda c, who: tokens.revoke(c, token, **who))


@router.post("/operator/identities/{identity}/revoke")
def revoke_identity(request: Request, registry: Here, caller: Operator, identity: str) -> Response:
    """Takes an identity out of use."""
    reason = "by the operator, on the page"
    return _act(
        request,
        registry,
        caller,
        "identity",
        lambda c, who: identities.revoke(c, identity, reason, **who),
    )


@router.post("/operator/enrolments/{enrolment}/verify")
def verify(request: Request, registry: Here, caller: Operator, enrolment: str) -> Response:
    """Asks for a verification of a closed chain."""
    # Imported late: it brings numpy with it, which the server starts without.
    from polo.registry.verifications import service

    def act(connection: Connection, _who: dict[str, Any]) -> None:
        service.ask(registry, connection, enrolment, None, actor=caller.actor)

    return _act(request, registry, caller, "verification", act)


@router.post("/operator/challenges/{challenge}/check")
def check_again(request: Request, registry: Here, caller: Operator, challenge: str) -> Response:
    """Has an answer checked again that could not be checked."""
    return _act(
        request,
        registry,
        caller,
        "challenge",
        lambda c, who: challenges.check_again(registry, c, challenge, **who),
    )


@router.post("/operator/jobs/{number}/retry")
def retry_job(request: Request, registry: Here, caller: Operator, number: int) -> Response:
    """Puts a broken job in again."""

    def act(connection: Connection, _who: dict[str, Any]) -> None:
        found = desk.job(connection, number)
        if found is None:
            raise Problem(404, "resource.missing", f"there is no job {number}")
        registry.jobs.enqueue(connection, found.kind, found.subject, queue=found.queue)

    return _act(request, registry, caller, "job", act)


def _act(
    request: Request,
    registry: Registry,
    caller: Caller,
    word: str,
    act: Callable[[Connection, dict[str, Any]], object],
) -> Response:
    """Do something in one transaction, and go back to the page, which says so."""
    who = {"actor": caller.actor, "request": request_id(request), "now": registry.clock()}
    with registry.database.begin() as connection:
        act(connection, who)
    return RedirectResponse(f"/operator?done={word}", 303, headers=render.HEADERS)


def _desk(
    request: Request, registry: Registry, caller: Caller, *, said: str = "", secret: str = ""
) -> HTMLResponse:
    acts = caller.role == "operator" and (caller.token is None or "write" in caller.scopes)
    admin = acts and (caller.token is None or "admin" in caller.scopes)
    with registry.database.read() as connection:
        values = desk.values(connection, with_tokens=admin)
    cookie = callers.session_cookie(request)
    shared = {
        "caller": caller,
        "acts": acts,
        "csrf": callers.csrf_token(cookie) if cookie else "",
        "said": said,
        "secret": secret,
        "days": registry.settings.token_days,
        "now": registry.clock(),
    }
    return render.answer(request, "operator.html", {**values, **shared})


def _make_token(
    request: Request, registry: Registry, caller: Caller, form: FormData
) -> HTMLResponse:
    name, role = forms.text(form, "name", 128), forms.text(form, "role")
    scopes = forms.text(form, "scopes").split()
    days = forms.text(form, "days", 4)
    if not name or not name.isprintable() or role not in ("auditor", "operator"):
        raise Problem(422, "body.invalid", "a token has a name and a role")
    if not scopes or set(scopes) - set(callers.SCOPES):
        raise Problem(422, "body.invalid", f"scopes are of {', '.join(callers.SCOPES)}")
    if not days.isascii() or not days.isdigit() or not 1 <= int(days) <= 3650:
        raise Problem(422, "body.invalid", "a token is good for 1 to 3650 days")
    who: dict[str, Any] = {"actor": caller.actor, "request": request_id(request)}
    who["now"] = registry.clock()
    with registry.database.begin() as connection:
        _, secret = tokens.make(connection, name, role, scopes, days=int(days), **who)
    return _desk(request, registry, caller, secret=secret)


def _login_page(
    request: Request, registry: Registry, problem: str = "", status: int = 200
) -> HTMLResponse:
    word, fresh = forms.guest_word(request, registry)
    values = {"csrf": word, "problem": problem}
    response = render.answer(request, "login.html", values, status=status)
    forms.remember(response, registry, fresh)
    return response


def _sign_in(request: Request, registry: Registry, secret: str) -> Response:
    hours, now = registry.settings.session_hours, registry.clock()
    try:
        with registry.database.begin() as connection:
            cookie, ends = tokens.sign_in(
                connection, secret, hours=hours, request=request_id(request), now=now
            )
    except Problem as problem:
        registry.limits.addresses.punish(getattr(request.state, "address", ""))
        words = f"{problem.detail[:1].upper()}{problem.detail[1:]}."
        return _login_page(request, registry, words, problem.status)
    response = RedirectResponse("/operator", 303, headers=render.HEADERS)
    forms.set_cookie(response, registry, callers.cookie_name(registry), cookie, ends - now)
    return response


def _sign_out(registry: Registry, session: bytes) -> None:
    with registry.database.begin() as connection:
        tokens.sign_out(connection, session)
