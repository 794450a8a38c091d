"""Requests to a registry: signed, bounded, tried again where that can help."""

import hashlib
import json
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from polo.errors import (
    DistrustError,
    MissingError,
    OutageError,
    PoloError,
    RegistryError,
    SignatureError,
)
from polo.protocol import requests, signing
from polo.weights.files import open_plain

if TYPE_CHECKING:
    import httpx2

MAX_ANSWER = 8 * 1024 * 1024
MAX_PAGE = 256 * 1024 * 1024
"""Most bytes of an answer, and of a report or a file."""

_AWAY = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_WAIT = 300.0
_PIECE = 1024 * 1024


@dataclass(frozen=True)
class Patience:
    """How often to try, and how long to wait in between: doubling, with jitter.

    Attributes:
        tries: Most tries of one request.
        first: Seconds of the first wait.
        most: Longest wait, unless the registry asks for a longer one.
        seconds: Seconds that one try may take until something comes.
    """

    tries: int = 6
    first: float = 0.25
    most: float = 20.0
    seconds: float = 30.0

    def waits(self) -> Iterator[float]:
        """Seconds to wait after each try; spread, so that not all clients come back at once."""
        base = self.first
        while True:
            yield base * random.uniform(0.5, 1.0)  # noqa: S311
            base = min(2 * base, self.most)


@dataclass(frozen=True)
class Reply:
    """An answer that is no error."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self, place: str) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise distrust("the answer is no JSON", place=place) from error
        if not isinstance(found, dict):
            raise distrust("the answer is no JSON object", place=place)
        return found


class Connection:
    """A registry's address, and the key that requests to it are signed with.

    Args:
        url: Where the registry is.
        signer: Who asks; None to ask as nobody.
        origin: The registry's name, which signatures are for; None to ask it when it is needed.
        patience: How often to try.
        transport: What carries the requests, instead of the network.

    Attributes:
        signer: Who asks from now on.
    """

    def __init__(
        self,
        url: str,
        signer: signing.Signer | None,
        *,
        origin: str | None,
        patience: Patience,
        transport: "httpx2.BaseTransport | None" = None,
    ) -> None:
        self.url = checked_url(url)
        self.origin = origin
        self.signer = signer
        self.patience = patience
        self._prefix = urlsplit(self.url).path
        self._httpx = _httpx()
        self._client = self._httpx.Client(
            timeout=self._httpx.Timeout(patience.seconds, connect=min(10.0, patience.seconds)),
            transport=transport,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "polo-client"},
        )

    def close(self) -> None:
        """Let go of the network."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: bytes | Path | None = None,
        json_body: Any = None,
        headers: Mapping[str, str] | None = None,
        signed: bool = True,
        limit: int = MAX_ANSWER,
        tries: int | None = None,
    ) -> Reply:
        """Send a request, again where the registry is away; a refusal is raised at once.

        Args:
            method: GET, POST, …
            path: Path below the registry's address, from `/v1` on.
            query: Parameters.
            body: The body, as bytes, or the file that holds it.
            json_body: The body, as what JSON can say.
            headers: More headers.
            signed: Whether to sign it, where there is a key.
            limit: Most bytes of the answer.
            tries: Most tries, if other than usual.

        Raises:
            OutageError: The registry could not be reached, or was too busy, at every try.
            RegistryError: It refuses.
            DistrustError: What it says is not what a registry can say.
        """
        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(given)}" if given else "")
        sent = {**(headers or {})}
        if json_body is not None:
            body, sent["Content-Type"] = json.dumps(json_body).encode(), "application/json"
        make = self._maker(method, target, body or b"", sent, signed=signed)
        left = tries or self.patience.tries
        for wait in self.patience.waits():
            left -= 1
            try:
                return self._once(make(), limit)
            except OutageError as error:
                # What TLS objects to stays so, however often one tries.
                if not left or "SSL:" in error.message:
                    raise
                time.sleep(min(max(wait, error.retry_after), _LONGEST_WAIT))
        raise AssertionError

    def _maker(
        self,
        method: str,
        target: str,
        body: bytes | Path,
        headers: dict[str, str],
        *,
        signed: bool,
    ) -> "Callable[[], httpx2.Request]":
        """Makes the request; each try is signed anew, since a signature holds once."""
        address = self.url[: len(self.url) - len(self._prefix)] + target
        digest, size = _measured(body)

        def make() -> "httpx2.Request":
            sent = dict(headers)
            if signed and self.signer:
                sent["Authorization"] = self._authorization(method, target, digest)
            if isinstance(body, Path):
                # A file of unknown length would be sent in chunks, which a registry refuses.
                sent["Content-Length"] = str(size)
            content = _pieces(body) if isinstance(body, Path) else body
            made: httpx2.Request = self._client.build_request(
                method, address, content=content, headers=sent
            )
            return made

        return make

    def _authorization(self, method: str, target: str, digest: bytes) -> str:
        assert self.signer is not None
        if self.origin is None:
            said = self.ask("GET", "/v1/keys", signed=False).json(self.url)
            self.origin = _word(said.get("origin"), 256)
        nonce = secrets.token_bytes(requests.NONCE_BYTES)
        return requests.sign_over(
            self.signer, method, self.origin, target, digest, time=int(time.time()), nonce=nonce
        )

    def _once(self, request: "httpx2.Request", limit: int) -> Reply:
        try:
            response = self._client.send(request, stream=True)
            try:
                body = _bounded(response, limit, self.url)
            finally:
                response.close()
        except (self._httpx.TransportError, OSError) as error:
            raise OutageError(
                f"cannot be reached ({' '.join(str(error).split())[:120] or type(error).__name__})",
                place=self.url,
                advice=_out_of_reach(str(error)),
            ) from error
        except self._httpx.HTTPError as error:
            raise distrust(str(error)[:200], place=self.url) from error
        reply = Reply(response.status_code, body, dict(response.headers))
        if reply.status >= 300:
            raise _refusal(reply, self.url)
        return reply


def distrust(message: str, *, place: str, code: str = "registry.malformed") -> DistrustError:
    """An answer that no honest registry gives."""
    return DistrustError(
        message,
        code=code,
        place=place,
        advice="Is this the address of a registry? If it was one until now: keep what you have, "
        "and tell whoever runs it.",
    )


def checked_url(url: str) -> str:
    """A registry's address without a slash at its end; refused if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise RegistryError(
            "is no address of a registry",
            code="registry.address",
            place=url[:200],
            advice="Give one like https://registry.example or http://127.0.0.1:8440",
        )
    if "@" in parts.netloc:
        raise SignatureError(
            "an address with a password in it",
            place=parts.hostname or "",
            advice="A registry knows you by your key; leave the password out.",
        )
    return url.rstrip("/")


def _measured(body: bytes | Path) -> tuple[bytes, int]:
    """Digest and size of a body."""
    if isinstance(body, bytes):
        return requests.body_digest(body), len(body)
    with open_plain(body) as file:
        size = os.fstat(file.fileno()).st_size
        return hashlib.file_digest(file, "sha256").digest(), size  # type: ignore[arg-type]


def _pieces(path: Path) -> Iterator[bytes]:
    with open_plain(path) as file:
        while piece := file.read(_PIECE):
            yield piece


def _bounded(response: "httpx2.Response", limit: int, place: str) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise distrust("a packed answer, which nobody asked for", place=place)
    pieces, size = [], 0
    for piece in response.iter_raw():
        size += len(piece)
        if size > limit:
            raise distrust(f"an answer of more than {limit} bytes", place=place)
        pieces.append(piece)
    return b"".join(pieces)


def _refusal(reply: Reply, place: str) -> PoloError:
    """What to raise for an answer that says no."""
    said: dict[str, Any] = {}
    if "json" in reply.headers.get("content-type", ""):
        try:
            said = reply.json(place)
        except DistrustError:
            said = {}
    code = _word(said.get("code"), 64) or f"http.{reply.status}"
    detail = _word(said.get("detail"), 500) or f"answers {reply.status}"
    advice = _advice(code, _word(said.get("advice"), 500), said)
    if reply.status in _AWAY:
        wait = reply.headers.get("retry-after", "")
        return OutageError(
            detail,
            code=code,
            status=reply.status,
            place=place,
            advice=advice,
            retry_after=float(wait[:6]) if wait.isdecimal() else 0.0,
        )
    return RegistryError(detail, code=code, status=reply.status, place=place, advice=advice)


def _out_of_reach(why: str) -> str:
    """What to do where no connection came about."""
    if "WRONG_VERSION_NUMBER" in why:
        return "It does not speak https. A registry without a TLS proxy is at http://…"
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return (
            "Its certificate does not hold here. Is this its address, and does the clock go right?"
        )
    if "Name or service not known" in why or "name resolution" in why:
        return "There is no such name. Is the address right, and is this machine online?"
    return "Is this the address of a registry, and is it running?"


def _advice(code: str, advice: str, said: Mapping[str, Any]) -> str:
    if code in ("http.404", "resource.missing") and not advice:
        return "Is this the address of a registry? Give the one that its operator named."
    if code == "caller.stale":
        return f"Set this machine's clock: it says {time.strftime('%H:%M:%S', time.gmtime())} UTC."
    if code == "identity.missing":
        return "Is this the right key and registry? polo enrol --registry URL registers a key."
    if code == "caller.unknown-key":
        return (
            "Use the key that was registered, or register this one: polo enrol --registry URL. "
            "If another took its place since: polo submit PROOF --key OLD --as NEW"
        )
    return advice


def _word(value: object, most: int) -> str:
    """What a registry says, as far as a terminal can stand it."""
    text = value if isinstance(value, str) else ""
    return "".join(char if char.isprintable() else " " for char in text[:most])


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise MissingError(
            "talking to a registry needs httpx2", advice="pip install 'polo-proof[client]'"
        ) from error
    return httpx2
