"""`/v1/enrolments/{id}/commitments`."""

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from polo.errors import PoloError
from polo.protocol.entries import Entry
from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.commitments import openings, service
from polo.registry.commitments.answers import Answer, Receipted
from polo.registry.commitments.chains import Chain
from polo.registry.commitments.rules import Submission, readable, unopened
from polo.registry.context import Registry
from polo.registry.problems import Problem, problem_of

router = APIRouter(prefix="/v1/enrolments/{enrolment}/commitments", tags=["commitments"])

Id = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The enrolment's digest.")]
_PATH = re.compile("/v1/enrolments/([0-9a-f]{64})/commitments")
_RECORDED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The receipt, the next nonce, and the place in the log."},
    202: {"description": "The entry is in the log; its receipt waits for a challenge."},
}
_ENTRY = {
    "requestBody": {
        "required": True,
        "description": "The canonical bytes of a polo/entry/1 record.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


@router.post("", responses=_RECORDED, openapi_extra=_ENTRY)
async def commit(request: Request, enrolment: Id) -> Response:
    """Commit to a checkpoint: the entry goes into the log, its receipt comes back.

    The same bytes again, in a new request, get the same receipt again.
    """
    registry = registry_of(request)
    body = await request.body()
    given = callers.authorization(request, body, registry)
    chain = registry.sequencer.chains.at_hand(enrolment)
    if chain is None:
        chain = await run_in_threadpool(found, registry, enrolment)
    if given.key == chain.record.identity:
        # Others cost their address, as long as it is not known that they are registered.
        callers.charge(request, given.key.hex())
    entry = readable(body, chain)
    matches = None
    if chain.streams and entry.shard:
        matches = await run_in_threadpool(_read, registry, chain, entry)
    submission = Submission(chain, entry, body, given, matches)
    return _answered(await registry.sequencer.submit(submission))


class Direct:
    """Takes commitments past the framework's routing, which costs as much as the rest of one.

    The route above says what they are, and is what this calls.

    Args:
        app: What gets all other requests.
        answer: Answers what is refused.
        busy: Answers when the database is busy or gone.
    """

    def __init__(
        self,
        app: ASGIApp,
        answer: Callable[[Request, Problem], Response],
        busy: Callable[[Request, Exception], Response],
    ) -> None:
        self._app = app
        self._answer = answer
        self._busy = busy
        self._route = next(route for route in router.routes if route.endpoint is commit)  # type: ignore[attr-defined]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = self._route
        request = Request(scope, receive)
        try:
            response = await commit(request, found[1])
        except PoloError as error:
            response = self._answer(request, problem_of(error))
        except (OperationalError, PoolTimeout) as error:
            response = self._busy(request, error)
        await response(scope, receive, send)


def _read(registry: Registry, chain: Chain, entry: Entry) -> int | None:
    """Bits that read right in the opening; None where it is not this entry's turn."""
    with registry.database.read() as connection:
        # What is said about the mark tells about the nonce, which nobody has before the receipt.
        previous = service.receipted(connection, chain.id, entry.number - 1)
        if previous is None or service.entry_of(connection, chain.id, entry.number):
            return None
        if not service.is_opened(connection, chain.id, entry):
            raise unopened(chain, entry.number)
    return openings.matches(registry.objects, chain, previous, entry)


@router.get("")
def listed(
    request: Request,
    enrolment: Id,
    after: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """A chain's commitments in order. They are public, as the log is."""
    registry = registry_of(request)
    found(registry, enrolment)
    with registry.database.read() as connection:
        items = service.page(connection, enrolment, after=after, limit=limit)
    following = items[-1].shard if len(items) == limit else None
    return {"items": [item.to_json() for item in items], "next": following}


@router.get("/{shard}", responses=_RECORDED)
def shown(
    request: Request,
    enrolment: Id,
    shard: Annotated[int, Path(ge=0, le=2**31 - 1)],
    caller: Annotated[Caller, Depends(callers.anyone)],
) -> Response:
    """What answered one commitment. Only its prover sees the nonce."""
    registry = registry_of(request)
    chain = found(registry, enrolment)
    with registry.database.read() as connection:
        owner = service.owner_of(connection, enrolment)
        mine = caller.identity is not None and caller.identity == owner
        answer = service.answer(connection, chain, shard, with_nonce=mine)
    return _answered(answer)


def found(registry: Registry, enrolment: str) -> Chain:
    """The chain, or a `Problem`."""
    chain: Chain | None = registry.sequencer.chains.get(enrolment)
    if chain is None:
        raise Problem(404, "enrolment.missing", "there is no such enrolment")
    return chain


def _answered(answer: Answer) -> Response:
    status = 200 if isinstance(answer, Receipted) else 202
    return Response(answer.body(), status, media_type="application/json")
