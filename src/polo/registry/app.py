"""The application: every domain's routes, and how errors are answered."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from polo._version import __version__
from polo.errors import PoloError
from polo.registry import callers, health
from polo.registry.challenges import routes as challenges
from polo.registry.commitments import routes as commitments
from polo.registry.context import Registry
from polo.registry.enrolments import routes as enrolments
from polo.registry.events import routes as events
from polo.registry.identities import routes as identities
from polo.registry.log import routes as log
from polo.registry.observing import LOGGER
from polo.registry.pages import failures
from polo.registry.pages import operator as operator_pages
from polo.registry.pages import routes as pages
from polo.registry.pages import whose as whose_pages
from polo.registry.problems import MEDIA_TYPE, Problem, problem_of
from polo.registry.scans import routes as scans
from polo.registry.tasks import routes as tasks
from polo.registry.tokens import routes as tokens
from polo.registry.uploads import routes as uploads
from polo.registry.uploads import upkeep
from polo.registry.verifications import routes as verifications
from polo.registry.wire import Held, Wire

ROUTERS = (
    health.router,
    identities.router,
    tokens.router,
    events.router,
    tasks.router,
    enrolments.router,
    commitments.router,
    log.router,
    uploads.router,
    challenges.router,
    verifications.router,
    scans.router,
    pages.router,
    operator_pages.router,
    whose_pages.router,
)

_ABOUT = """\
Enrols provers, takes their commitments into a public log, draws challenges, verifies proofs.

Programs sign each request with their identity's Ed25519 key (`Authorization: PoLO key=…`); people
send a token (`Authorization: Bearer polo_…`). Every refusal is `application/problem+json` with a
stable `code`. Lists come in pages: `?after=` takes the `next` of the page before.
"""

_SCHEMES = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": (
            "`PoLO key=<hex>,time=<unix>,nonce=<32 hex>,signature=<hex>`: the identity's Ed25519 "
            "signature over method, origin, path with query, body digest, time and nonce "
            "(docs/protocol.md, section 21)."
        ),
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "`polo_…`: of an auditor or operator, with the scopes read, write, admin.",
    },
}

_STATUS_CODES = {404: "resource.missing", 405: "resource.method", 413: "body.too-large"}


class Application(FastAPI):
    """A FastAPI application beside whose routing commitments go straight to their work."""

    direct: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if commitments.is_direct(scope):
            scope["app"] = self
            await self.direct(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(registry: Registry) -> FastAPI:
    """The ASGI application of an open registry."""
    app = Application(
        title="PoLO registry",
        version=__version__,
        description=_ABOUT,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        responses={"default": {"description": "A problem.", "content": _problem_schema()}},
    )
    app.state.registry = registry
    held = Held()
    app.direct = Wire(commitments.Direct(answer=answer, busy=_on_busy), registry, held)
    app.add_middleware(Wire, registry=registry, held=held)
    app.add_exception_handler(PoloError, _on_polo_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(DataError, _on_unfit)
    app.add_exception_handler(OperationalError, _on_busy)
    app.add_exception_handler(PoolTimeout, _on_busy)
    for router in ROUTERS:
        for route in router.routes:
            _secure(route)
        app.include_router(router)
    _document(app)
    return app


def _document(app: FastAPI) -> None:
    """Say in the OpenAPI document how callers prove who they are."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        document.setdefault("components", {})["securitySchemes"] = _SCHEMES
        return document

    vars(app)["openapi"] = openapi


def _secure(route: BaseRoute) -> None:
    """Name the schemes that a route's dependencies take; some routes name their own."""
    if not isinstance(route, APIRoute):
        return
    asked = (callers.security_of(item.call) for item in route.dependant.dependencies)
    security = next((item for item in asked if item is not None), None)
    if security is not None:
        route.openapi_extra = {"security": security, **(route.openapi_extra or {})}


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    registry: Registry = app.state.registry
    registry.jobs.start(registry)
    if registry.jobs.mode != "inside":  # Workers clean up, but not in this server's folder.
        await run_in_threadpool(upkeep.forget_pieces, registry)
    LOGGER.info("started", extra={"origin": registry.settings.origin})
    yield
    registry.jobs.stop(registry.settings.shutdown_seconds)
    LOGGER.info("stopped")


def answer(request: Request, problem: Problem) -> Response:
    """The answer that says what is wrong."""
    registry = callers.registry_of(request)
    request.state.code = problem.code
    if failures.wants_page(request, problem):
        return failures.page(request, problem, callers.request_id(request))
    body = problem.to_json(registry.settings.public_url, callers.request_id(request))
    return JSONResponse(body, problem.status, problem.headers, MEDIA_TYPE)


def _on_polo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PoloError)
    return answer(request, problem_of(error))


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, Problem):  # Raised while FastAPI was reading the body.
        return answer(request, error.__cause__)
    fallback = "body.broken" if error.status_code == 400 else "request.failed"
    code = _STATUS_CODES.get(error.status_code, fallback)
    problem = Problem(error.status_code, code, str(error.detail), headers=error.headers)
    return answer(request, problem)


def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = [
        # Never the value: it may be a secret that was put into the wrong field.
        {"at": ".".join(str(part) for part in item["loc"])[:200], "message": str(item["msg"])[:300]}
        for item in error.errors()[:20]
    ]
    detail = f"{fields[0]['at']}: {fields[0]['message']}" if fields else "not what is taken here"
    return answer(request, Problem(422, "body.invalid", detail, errors=fields))


def _on_unfit(request: Request, _error: Exception) -> Response:
    """A value that got past the checks and that the database cannot hold, such as a NUL."""
    LOGGER.warning("unfit for the database", extra={"request": callers.request_id(request)})
    return answer(request, Problem(422, "body.invalid", "a value that cannot be stored"))


def _on_busy(request: Request, error: Exception) -> Response:
    LOGGER.warning(
        "database busy or gone: %s",
        type(getattr(error, "orig", error)).__name__,
        extra={"request": callers.request_id(request)},
    )
    problem = Problem(
        503,
        "registry.busy",
        "the database did not answer in time",
        advice="Try again.",
        headers={"Retry-After": "2"},
    )
    return answer(request, problem)


def _problem_schema() -> dict[str, Any]:
    texts: Iterable[str] = ("type", "title", "code", "detail", "advice", "request")
    properties: dict[str, Any] = {name: {"type": "string"} for name in texts}
    properties["status"] = {"type": "integer"}
    schema = {"type": "object", "required": [*properties], "properties": properties}
    return {MEDIA_TYPE: {"schema": schema}}
