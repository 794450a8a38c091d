"""Uploads that go on where they stopped."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polo.client.http import Connection, distrust
from polo.errors import FormatError, RegistryError, StoreError
from polo.weights.files import open_plain

PIECE = 4 * 1024 * 1024
"""Bytes that travel in one request."""

_STUCK = 5

Tell = Callable[[str, int, int], None]
"""Told of progress: what, how much of it, how much in all."""


def upload(
    connection: Connection,
    path: Path,
    *,
    enrolment: str,
    kind: str,
    shard: int | None = None,
    tell: Tell = lambda *_: None,
    tries: int | None = None,
) -> str:
    """Bring a file to the registry, or what is missing of it there.

    Args:
        connection: The registry.
        path: The file.
        enrolment: The enrolment that it belongs to.
        kind: What it is: `opening`, `checkpoint`, `answer`, `proof` or `record`.
        shard: The shard that it belongs to.
        tell: Told of progress.
        tries: Most tries of each request.

    Returns:
        The upload's id.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        wanted = {"enrolment": enrolment, "kind": kind, "size": size, "sha256": digest}
        if shard is not None:
            wanted["shard"] = shard
        begun = connection.ask("POST", "/v1/uploads", json_body=wanted, tries=tries)
        said = begun.json(connection.url)
        number = str(said.get("id", ""))
        at, stuck = _received(said, size, connection.url), 0
        while at < size:
            tell(path.name, at, size)
            file.seek(at)
            piece = file.read(PIECE)
            if not piece:
                raise StoreError("was cut short while it was sent", place=str(path))
            after = _send(connection, number, at, piece, size, tries)
            stuck = 0 if after > at else stuck + 1
            if stuck >= _STUCK:
                raise FormatError("the registry takes no more of it", place=str(path))
            at = after
        tell(path.name, size, size)
    return number


def _send(
    connection: Connection, number: str, at: int, piece: bytes, size: int, tries: int | None
) -> int:
    """Send a piece; how much the registry has afterwards."""
    headers = {"Upload-Offset": str(at), "Content-Type": "application/octet-stream"}
    where = f"/v1/uploads/{number}"
    try:
        reply = connection.ask("PATCH", where, body=piece, headers=headers, tries=tries)
    except RegistryError as error:
        # A try whose answer was lost may have been taken: ask how much is there.
        if error.status != 409:
            raise
        reply = connection.ask("GET", where, tries=tries)
    return _received(reply.json(connection.url), size, connection.url)


def _received(said: dict[str, Any], size: int, place: str) -> int:
    received = said.get("received")
    if not isinstance(received, int) or not 0 <= received <= size:
        raise distrust("says something impossible about an upload", place=place)
    return received
