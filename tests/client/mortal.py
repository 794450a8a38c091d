"""Trainers and registries in children that are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

from polo.registry.settings import Settings

TESTS = Path(__file__).parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Worker:
    """Trains in children that die."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, str(TESTS / "hostile" / "crash_worker.py"), str(folder)]
        self._process = subprocess.Popen(
            [*command, str(TESTS), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == {"ready": True}

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


class Server:
    """`polo registry serve` in a child that can be killed and started again."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.url = f"http://127.0.0.1:{settings.port}"
        self._arguments = ["--data", str(settings.data)]
        for name in ("port", "origin", "rate", "guest_rate"):
            self._arguments += ["--set", f"{name}={getattr(settings, name)}"]
        self._worker = subprocess.Popen(
            [sys.executable, str(TESTS / "registry" / "serve_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SERVE_LOG": str(log)},
        )
        self._log = log
        self._child: int | None = None

    def start(self) -> None:
        assert self._worker.stdin
        self._worker.stdin.write(json.dumps(self._arguments) + "\n")
        self._worker.stdin.flush()
        self._child = int(self._line())
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx2.get(f"{self.url}/healthz").raise_for_status()
            except httpx2.TransportError:
                assert time.monotonic() < deadline, self._log.read_text()[-3000:]
                time.sleep(0.01)
            else:
                return

    def kill(self) -> None:
        assert self._child is not None
        os.kill(self._child, signal.SIGKILL)
        self._child = None
        assert self._line() == "dead\n"

    def close(self) -> None:
        if self._child is not None:
            self.kill()
        assert self._worker.stdin
        assert self._worker.stdout
        self._worker.stdin.close()
        assert self._worker.wait(30) == 0
        self._worker.stdout.close()

    def _line(self) -> str:
        assert self._worker.stdout
        return self._worker.stdout.readline()
