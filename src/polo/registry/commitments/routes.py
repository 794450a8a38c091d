"""`/v1/enrolments/{id}/commitments`."""

import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from polo.errors import FormatError, PoloError
from polo.protocol.entries import Entry, without_opening
from polo.protocol.requests import Authorization
from polo.registry import callers
from polo.registry.callers import Caller, registry_of
from polo.registry.commitments import openings, service
from polo.registry.commitments import recorded as records
from polo.registry.commitments.answers import Answer
from polo.registry.commitments.chains import Chain
from polo.registry.commitments.rules import (
    Submission,
    check_caller,
    check_turn,
    readable,
    unopened,
)
from polo.registry.commitments.standing import standing_of
from polo.registry.commitments.views import ReceiptedView, WaitingView
from polo.registry.context import Registry
from polo.registry.problems import Problem, problem_of
from polo.registry.uploads import retention

router = APIRouter(prefix="/v1/enrolments/{enrolment}/commitments", tags=["commitments"])

Id = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The enrolment's digest.")]
_PATH = re.compile("/v1/enrolments/[0-9a-f]{64}/commitments")
_ID = slice(len("/v1/enrolments/"), len("/v1/enrolments/") + 64)
_TOGETHER = "application/octet-stream"
_RECORDED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The receipt, the next nonce, and the place in the log.",
        "model": ReceiptedView,
    },
    202: {
        "description": "The entry is in the log; its receipt waits for a challenge.",
        "model": WaitingView,
    },
}
_ENTRY = {
    "security": callers.SIGNED,
    "requestBody": {
        "required": True,
        "description": "The canonical bytes of a polo/entry/1 record. As octets: the length of the "
        "entry in four bytes, the greatest first, the entry, and the file of the shard's opening.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    },
}


@router.post("", responses=_RECORDED, openapi_extra=_ENTRY)
async def commit(request: Request, enrolment: Id) -> Response:
    """Commit to a checkpoint: the entry goes into the log, its receipt comes back.

    The same bytes again, in a new request, get the same receipt again.
    """
    answer = await committed(request, enrolment)
    return Response(answer.body(), answer.STATUS, media_type="application/json")


async def committed(request: Request, enrolment: str) -> Answer:
    """What answers a commitment, once it is on the disk."""
    registry = registry_of(request)
    body = await request.body()
    given = callers.authorization(request, body, registry)
    chain = registry.sequencer.chains.at_hand(enrolment)
    if chain is None:
        chain = await run_in_threadpool(found, registry, enrolment)
    if given.key != chain.record.identity:
        # It costs the address, unless the key took the enrolled one's place.
        await run_in_threadpool(_check_other, registry, chain, given)
    callers.charge(request, given.key.hex())
    data, opening = _apart(request, body)
    entry = readable(data, chain)
    matches = recorded = None
    if chain.streams and entry.shard:
        matches, recorded = await run_in_threadpool(_read, registry, chain, entry, given, opening)
    elif opening is not None:
        raise Problem(422, "commitment.broken", "an opening that the terms do not ask for")
    attached = len(opening) if opening and matches is not None else None
    submission = Submission(
        chain, entry, data, given, matches, recorded=recorded, attached=attached
    )
    if opening is None or attached is None:
        return await registry.sequencer.submit(submission)
    return await _submitted(registry, submission, opening)


def _check_other(registry: Registry, chain: Chain, given: Authorization) -> None:
    """Refuse another key than the enrolled one, unless the identity signs with it by now."""
    with registry.database.read() as connection:
        standing = standing_of(connection, chain.id)
    if standing is None:
        raise _missing()
    check_caller(standing, given)


def _apart(request: Request, body: bytes) -> tuple[bytes, bytes | None]:
    """The entry, and the opening if one came along."""
    if request.headers.get("content-type") != _TOGETHER:
        return body, None
    try:
        return without_opening(body)
    except FormatError as error:
        raise Problem(422, "commitment.broken", str(error)) from error


async def _submitted(registry: Registry, submission: Submission, opening: bytes) -> Answer:
    """Commit with an opening that is on the disk, and stays there only if the entry is taken."""
    try:
        answer = await registry.sequencer.submit(submission)
    except PoloError:
        digest = hashlib.sha256(opening).hexdigest()
        await run_in_threadpool(retention.discard, registry, digest)
        raise
    await run_in_threadpool(openings.keep, registry, opening)
    return answer


class Direct:
    """Takes commitments past the framework, which costs more than the rest of one.

    The route above says what they are, and does the same.

    Args:
        answer: Answers what is refused.
        busy: Answers when the database is busy or gone.
    """

    def __init__(
        self,
        answer: Callable[[Request, Problem], Response],
        busy: Callable[[Request, Exception], Response],
    ) -> None:
        self._answer = answer
        self._busy = busy
        self._route = next(route for route in router.routes if route.endpoint is commit)  # type: ignore[attr-defined]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        scope["route"] = self._route
        request = Request(scope, receive)
        try:
            answer = await committed(request, scope["path"][_ID])
            await _send(answer, send)
            return
        except PoloError as error:
            response = self._answer(request, problem_of(error))
        except (OperationalError, PoolTimeout) as error:
            response = self._busy(request, error)
        except ClientDisconnect:
            # Nobody hears it, but it counts as their fault and not as a failure of ours.
            problem = Problem(400, "body.broken", "the connection ended before the body did")
            response = self._answer(request, problem)
        await response(scope, receive, send)


def is_direct(scope: Scope) -> bool:
    """Whether a request is a commitment."""
    return (
        scope["type"] == "http"
        and scope["method"] == "POST"
        and _PATH.fullmatch(scope["path"]) is not None
    )


async def _send(answer: Answer, send: Send) -> None:
    body = answer.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.STATUS, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read(
    registry: Registry,
    chain: Chain,
    entry: Entry,
    given: Authorization,
    opening: bytes | None,
) -> "tuple[int | None, records.Recorded | None]":
    """Bits that read right in the opening, and what the record says; None where it is not due."""
    assert entry.shard is not None
    with registry.database.read() as connection:
        # What is said about the mark tells about the nonce, which nobody has before the receipt.
        previous = service.receipted(connection, chain.id, entry.number - 1)
        if previous is None or service.entry_of(connection, chain.id, entry.number):
            return None, None
        standing = standing_of(connection, chain.id)
        if standing:
            # The sequencer asks again; what it would refuse is not worth reading files for.
            check_caller(standing, given)
            check_turn(standing, chain, entry, registry.clock())
        if opening is not None:
            openings.check(connection, chain, entry, opening)
        elif not service.is_opened(connection, chain.id, entry):
            raise unopened(chain, entry.number)
        files = records.held(connection, chain, entry.shard) if chain.replays else []
    # Files are read without a connection: the store may be slow, and connections are few.
    recorded = records.read(registry.objects, chain, entry, files) if chain.replays else None
    matches = openings.matches(registry.objects, chain, previous, entry, opening)
    if opening is not None:
        openings.keep(registry, opening)
    return matches, recorded


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
    return Response(answer.body(), answer.STATUS, media_type="application/json")


def found(registry: Registry, enrolment: str) -> Chain:
    """The chain, or a `Problem`."""
    chain: Chain | None = registry.sequencer.chains.get(enrolment)
    if chain is None:
        raise _missing()
    return chain


def _missing() -> Problem:
    return Problem(404, "enrolment.missing", "there is no such enrolment")
