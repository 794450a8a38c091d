"""`Idempotency-Key`: a retry of a request that made something gets the first one's answer.

The answer is kept in the transaction that makes the thing, sealed, since it may hold a secret that
is told only once. After a day it is forgotten.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from fastapi import Request
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from polo.registry.callers import Caller, target_of
from polo.registry.context import Registry
from polo.registry.problems import Problem
from polo.registry.schema import answers

HEADER = "idempotency-key"
KEEP_SECONDS = 24 * 3600

_WORD = re.compile(r"[!-~]{1,128}")


def once(
    registry: Registry,
    connection: Connection,
    request: Request,
    body: Any,
    caller: Caller,
    make: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """What `make` answers, or what it answered when the same caller sent the same word before.

    Args:
        registry: The registry.
        connection: The write transaction that `make` works in.
        request: The request; without the header `make` is simply called.
        body: What the request asks for, as JSON has it; the same word with another is refused.
        caller: Who asks.
        make: Makes the thing; its answer must be JSON.
    """
    word = request.headers.get(HEADER)
    if word is None:
        return make()
    if not _WORD.fullmatch(word):
        raise Problem(400, "idempotency.word", "the Idempotency-Key has 1 to 128 printable letters")
    who = caller.identity or caller.token or (caller.key.hex() if caller.key else "guest")
    place = (answers.c.caller == who) & (answers.c.word == word)
    digest = _digest(request, body)
    found = connection.execute(select(answers).where(place)).first()
    if found is not None:
        if bytes(found.digest) != digest:
            raise Problem(409, "idempotency.other", "this Idempotency-Key was for another request")
        kept: dict[str, Any] = json.loads(registry.vault.open(bytes(found.body), _about(who, word)))
        return kept
    _begin(registry, connection, who, word, digest)
    answer = make()
    sealed = registry.vault.seal(json.dumps(answer).encode(), _about(who, word))
    connection.execute(update(answers).where(place).values(status=200, body=sealed))
    return answer


def _begin(registry: Registry, connection: Connection, who: str, word: str, digest: bytes) -> None:
    now = registry.clock()
    connection.execute(delete(answers).where(answers.c.time < now - KEEP_SECONDS))
    row = {"caller": who, "word": word, "digest": digest, "status": 0, "body": b"", "time": now}
    try:
        with connection.begin_nested():
            connection.execute(insert(answers).values(row))
    except IntegrityError as error:
        # PostgreSQL: another transaction with the same word was first, and has just ended.
        raise Problem(
            409,
            "idempotency.busy",
            "the same request is being answered at this moment",
            advice="Send it again.",
            headers={"Retry-After": "1"},
        ) from error


def _digest(request: Request, body: Any) -> bytes:
    asked = json.dumps([request.method, target_of(request), body], sort_keys=True)
    return hashlib.sha256(asked.encode()).digest()


def _about(who: str, word: str) -> str:
    return f"answer to {who} for {word}"
