"""Serving the application: uvicorn, with clients that dawdle cut off."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from polo.registry.app import create_app
from polo.registry.context import Registry

MAX_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""

KEEP_ALIVE = 30
"""Seconds that an idle connection is kept."""

SWITCH = 0.0005
"""Seconds after which a thread that waits gets its turn. By Python's usual 5 ms, a group of
commitments would wait that long after every statement, while requests are being read."""


def protocol(seconds: float) -> type[HttpToolsProtocol]:
    """The HTTP protocol that gives a client so many seconds, and so many bytes, for a head.

    uvicorn bounds neither: connections with half a head would stay for ever, at the cost of
    nothing to whoever opens them.
    """

    class Impatient(HttpToolsProtocol):
        """Closes connections whose head does not come."""

        _timer: asyncio.TimerHandle | None = None
        _head = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            waiting = self._timer
            super().data_received(data)
            # What came with the end of a head was its body, as large as one read may be.
            if waiting is not None and self._timer is waiting:
                self._head += len(data)
                if self._head > MAX_HEAD:
                    self._close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is None:  # A later request of the same connection.
                self._wait()

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._head = 0
            self._timer = self.loop.call_later(seconds, self._close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close(self) -> None:
            self._stop()
            self.transport.close()

    return Impatient


class Announced(uvicorn.Server):
    """A server that says when it takes requests.

    Args:
        config: What it serves, and how.
        started: Called then.
    """

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, as uvicorn does."""
        await super().startup(sockets)
        if self.started:
            self._say()


def server_of(
    registry: Registry, *, port: int | None = None, started: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """The server of an open registry, not running yet.

    Args:
        registry: The registry.
        port: Another port than the setting's; 0 for any that is free.
        started: Called when it takes requests.
    """
    settings = registry.settings
    config = uvicorn.Config(
        create_app(registry),
        host=settings.host,
        port=settings.port if port is None else port,
        loop="uvloop",
        http=protocol(settings.header_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `wire` believes trusted proxies alone.
        server_header=False,
        limit_concurrency=settings.connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        backlog=1024,
    )
    return Announced(config, started)
