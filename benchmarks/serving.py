"""A registry to measure: `polo registry serve`, as people run it, in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from polo.registry.settings import Settings


@contextmanager
def serving(settings: Settings, **more: object) -> Iterator["subprocess.Popen[bytes]"]:
    """The server in a process of its own, until it is told to stop.

    Args:
        settings: Where it keeps things, and where it listens.
        more: Further settings, by name.
    """
    given = {
        "DATA": settings.data,
        "DATABASE": settings.database,
        "ORIGIN": settings.origin,
        "PORT": settings.port,
        "RATE": 10**6,
        "GUEST_RATE": 10**6,
    } | {name.upper(): value for name, value in more.items()}
    environment = {f"POLO_REGISTRY_{name}": str(value) for name, value in given.items()}
    with (settings.data / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "polo", "registry", "serve"],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )
    try:
        _await(settings, process)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _await(settings: Settings, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((settings.host, settings.port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (settings.data / "server.log").read_text()[-2000:]
                raise RuntimeError(f"the server did not start: {said}") from None
            time.sleep(0.05)
        else:
            return


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
