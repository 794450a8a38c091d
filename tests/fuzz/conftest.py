"""What the tests of hostile files share: the fuzz targets, and a process that may fail."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SLOWEST = 60
"""Seconds after which a child is ended; what is asserted is the processor's time."""


@pytest.fixture(scope="session")
def warden() -> Iterator[subprocess.Popen[str]]:
    """The process that forks a child for every hostile file."""
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("warden.py"))]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **quiet, "PYTHONPATH": str(ROOT)},
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def attempt(warden: subprocess.Popen[str]) -> Callable[..., dict[str, Any]]:
    """Reads a file in a child that may grow by so many MiB; what came of it."""

    def make(kind: str, path: Path | str, *, room: int = 256) -> dict[str, Any]:
        assert warden.stdin is not None
        assert warden.stdout is not None
        print(json.dumps([kind, str(path), room, SLOWEST]), file=warden.stdin, flush=True)
        result: dict[str, Any] = json.loads(warden.stdout.readline())
        return result

    return make


@pytest.fixture(scope="session")
def refused(attempt: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Asserts that a file is refused as it must be; returns the error as a person reads it."""

    def check(kind: str, path: Path | str, place: str = "", *, mib: int = 64) -> str:
        result = attempt(kind, path, room=mib + 192)
        assert result["end"] == "refused", result
        assert result["mib"] <= mib, result
        assert result["seconds"] < 5, result
        assert result["message"], result
        assert place in result["place"], result
        assert result["place"], result
        text: str = f"{result['place']}: {result['message']}"
        assert len(text) < 2000, result
        return text

    return check
