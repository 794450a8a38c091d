"""What every request goes through on its way in and out.

It gets an id, is counted against its address, may send only so much in so much time, is answered
with headers that tell browsers to keep to themselves, and leaves a line in the log. A failure that
nobody foresaw is answered as a problem, too, and its traceback goes to the log alone.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polo.registry.context import Registry
from polo.registry.limits import network
from polo.registry.observing import LOGGER, say
from polo.registry.pages import failures
from polo.registry.problems import MEDIA_TYPE, Problem
from polo.registry.settings import Settings

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "content-security-policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
}
"""Set on every answer that does not set its own."""

UNCOUNTED = ("/healthz", "/readyz")
MOST_HELD = 256 * 1024 * 1024
"""Bytes of bodies in memory at the same time, over all requests."""

SMALL = 8 * 1024
"""Bytes of a body that is taken even when the large ones have filled the room for all."""

SLOWEST = 64 * 1024
"""Bytes a second that a body may come slower than only for its first `body_seconds`."""

_MOST_DIGITS = 20
_CONTROL = re.compile(r"[\x00-\x1f]")
_FORWARDED_ID = re.compile(r"[A-Za-z0-9-]{8,32}")
_UPLOADS = (
    ("PATCH", re.compile(r"/v1/uploads/[^/]+"), "max_piece"),
    ("POST", re.compile(r"/v1/enrolments/[^/]+/close"), "max_piece"),
    ("POST", re.compile(r"/v1/scans|/whose"), "max_upload"),
)


@dataclass
class Held:
    """How many bytes of bodies are in memory."""

    count: int = 0


class Wire:
    """ASGI middleware around the whole application.

    Args:
        app: What it is around.
        registry: The registry.
        held: Bodies in memory, of all requests.
    """

    def __init__(self, app: ASGIApp, registry: Registry, held: Held) -> None:
        self.app = app
        self.registry = registry
        self.held = held
        strict = {"strict-transport-security": "max-age=31536000"}
        every = HEADERS | (strict if registry.settings.secure else {})
        self._headers = [(name.encode(), value.encode()) for name, value in every.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(self, scope, receive, send)
        self.registry.metrics.running.inc()
        try:
            await exchange.run()
        finally:
            self.registry.metrics.running.dec()
            self.held.count -= exchange.held
            exchange.report()


class _Exchange:
    """One request and its answer."""

    def __init__(self, wire: Wire, scope: Scope, receive: Receive, send: Send) -> None:
        self.wire, self.scope = wire, scope
        self._receive, self._send = receive, send
        self.settings = wire.registry.settings
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.address, self.id = _origin(self.settings, scope, self.headers)
        self.state: MutableMapping[str, Any] = scope.setdefault("state", {})
        self.state |= {"request": self.id, "address": network(self.address), "charged": False}
        self.begun = time.monotonic()
        self.most = body_limit(self.settings, scope["method"], scope["path"])
        self.received = 0
        self.held = 0
        self.status = 0

    async def run(self) -> None:
        """Answer the request, whatever happens."""
        try:
            self._count()
            self._look()
            self._measure()
            await self.wire.app(self.scope, self.receive, self.send)
        except Problem as problem:
            await self._answer(problem)
        except asyncio.CancelledError:
            raise
        except Exception:
            LOGGER.exception("a request failed", extra={"request": self.id})
            await self._answer(
                Problem(500, "error.internal", "the registry failed to answer this request")
            )

    def _count(self) -> None:
        """Whoever says who they are is counted when it is known to be true."""
        if self.scope["path"] in UNCOUNTED:
            self.state["charged"] = True
            return
        buckets = self.wire.registry.limits.addresses
        named = b"authorization" in self.headers or b"cookie" in self.headers
        (buckets.check if named else buckets.take)(self.state["address"])
        self.state["charged"] = not named

    def _look(self) -> None:
        """Refuse paths with control characters: no resource has one, and databases choke on NUL."""
        if _CONTROL.search(self.scope["path"]):
            raise Problem(404, "resource.missing", "there is nothing at this address")

    def _measure(self) -> None:
        """Refuse a body that says itself that it is too large."""
        length = self.headers.get(b"content-length", b"0")
        # Python refuses to read numbers of thousands of digits, zeros in front included.
        if length.isdigit() and (len(length) > _MOST_DIGITS or int(length) > self.most):
            raise self._too_large()

    async def receive(self) -> Message:
        """The next piece of the body, unless there was too much or it took too long."""
        allowed = self.settings.body_seconds + self.received / SLOWEST
        left = self.begun + allowed - time.monotonic()
        waiting = self.status == 0 and not self.state.get("received")
        try:
            async with asyncio.timeout(max(left, 0.001) if waiting else None):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408,
                "body.slow",
                f"the body took longer than {allowed:.0f} s",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._hold(len(message.get("body", b"")))
            self.state["received"] = not message.get("more_body", False)
        return message

    def _hold(self, count: int) -> None:
        self.received += count
        if self.received > self.most:
            raise self._too_large()
        if self.most <= self.settings.max_piece:  # Larger ones go to the disk as they come.
            self.held += count
            self.wire.held.count += count
            # Commitments are small, and nobody's large pieces must keep them out.
            if self.wire.held.count > MOST_HELD and self.held > SMALL:
                raise Problem(
                    503,
                    "registry.busy",
                    "too many large requests at the same time",
                    headers={"Retry-After": "2", "Connection": "close"},
                )

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "body.too-large",
            f"the body has more than {self.most} bytes",
            headers={"Connection": "close"},
        )

    async def send(self, message: Message) -> None:
        """Pass the answer on, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            there = {name.lower() for name, _ in headers}
            headers += [item for item in self.wire._headers if item[0] not in there]
            headers.append((b"x-request-id", self.id.encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    async def _answer(self, problem: Problem) -> None:
        if self.status:
            return  # Too late: the answer has begun, and the connection is cut.
        self.state["code"] = problem.code
        request = Request(self.scope)
        if failures.wants_page(request, problem):
            page = failures.page(request, problem, self.id)
            await page(self.scope, self.receive, self.send)
            return
        body = json.dumps(problem.to_json(self.settings.public_url, self.id)).encode()
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        headers += [(name.lower().encode(), v.encode()) for name, v in problem.headers.items()]
        await self.send(
            {"type": "http.response.start", "status": problem.status, "headers": headers}
        )
        await self.send({"type": "http.response.body", "body": body})

    def report(self) -> None:
        """Count the request, and log it."""
        if not self.state["charged"]:
            self.wire.registry.limits.addresses.punish(self.state["address"], 1)
        took, method = time.monotonic() - self.begun, _method(self.scope["method"])
        route = getattr(self.scope.get("route"), "path", "none")
        metrics = self.wire.registry.metrics
        metrics.count(method, route, self.status, took)
        if code := self.state.get("code"):
            metrics.refused.labels(code).inc()
        say(
            "request",
            request=self.id,
            method=method,
            path=self.scope["path"][:512],
            status=self.status,
            ms=round(took * 1000, 1),
            address=self.address,
            caller=self.state.get("caller"),
            code=code,
        )


def body_limit(settings: Settings, method: str, path: str) -> int:
    """Bytes that the body of such a request may have."""
    for its_method, pattern, name in _UPLOADS:
        if method == its_method and pattern.fullmatch(path):
            most: int = getattr(settings, name)
            return most
    return settings.max_body


def _origin(settings: Settings, scope: Scope, headers: dict[bytes, bytes]) -> tuple[str, str]:
    """The address that a request came from, and its id; a trusted proxy may say both."""
    address = (scope.get("client") or ("", 0))[0]
    fresh = secrets.token_hex(8)
    if not settings.trusted_proxies or not settings.is_proxy(address):
        return address, fresh
    # From the right: what stands left of the first address we do not trust, anybody can write.
    for hop in reversed(headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")):
        address = hop.strip() or address
        if not settings.is_proxy(address):
            break
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return address, given if _FORWARDED_ID.fullmatch(given) else fresh


def _method(method: str) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return method if method in known else "other"
