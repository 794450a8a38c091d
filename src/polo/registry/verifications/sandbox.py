"""Running the child: with limits, without the registry's environment, and never for too long."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from polo.errors import PoloError
from polo.registry.context import Registry
from polo.registry.jobs import Later
from polo.registry.verifications import child

Progress = Callable[[str], None]

_PASSED_ON = {
    "CUBLAS_WORKSPACE_CONFIG", "HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "POLO_DATA",
    "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "SYSTEMROOT", "TZ", "VIRTUAL_ENV", "XDG_CACHE_HOME",
}  # fmt: skip
_PASSED_BEGINNINGS = (
    "ATEN_", "CUDA_", "DNNL_", "KMP_", "LC_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "PYTORCH_", "TORCH_",
)  # fmt: skip
"""All variables that the child gets: where programs and data are, and how to compute. Whatever else
is in the registry's environment may be a password."""

_PROVERS = ("FormatError", "LimitError", "SignatureError", "ChainError", "WeightsError")
"""Errors that are about what a prover sent; all others are the registry's own trouble."""

_MOST_STDERR = 4000
_MOST_RESULT = 256 * 2**20
_POLL = 0.5
_PER_BYTE = 12
"""Bytes of memory per byte of a checkpoint that a verification may need."""

_WRITTEN = 2**30
"""Bytes that each file of the child may have, beside what it was given and eight checkpoints."""


class ChildError(PoloError):
    """The child could not do its work; whose fault that is, nobody knows."""


class SlowError(ChildError):
    """The child took all the time there is; it would do so again."""


class RefusedError(PoloError):
    """What the prover sent is not what it must be."""


@contextlib.contextmanager
def room(registry: Registry) -> Iterator[Path]:
    """A folder for one run of the child, in the data folder; gone afterwards."""
    parent = registry.settings.data / "work"
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def run(
    registry: Registry,
    folder: Path,
    request: Mapping[str, Any],
    *,
    weights: int = 0,
    progress: Progress = lambda _: None,
    module: str = "",
    secret: bytes = b"",
    seconds: int | None = None,
) -> dict[str, Any]:
    """Run the child on a folder that has what the request needs.

    Args:
        registry: The registry.
        folder: What `room` made.
        request: What to do.
        weights: Bytes of a checkpoint, which the limit on memory grows with.
        progress: Hears about progress, in words.
        module: The program to run; by default that of verifications.
        secret: What it reads from standard input; it is never on the disk.
        seconds: How long it may take; by default as long as a verification.

    Raises:
        ChildError: The child failed or took too much memory.
        SlowError: The child was too slow.
        RefusedError: The child found that the prover sent something wrong.
        Later: The registry is stopping.
    """
    seconds = seconds or registry.settings.verify_seconds
    memory = registry.settings.verify_memory + _PER_BYTE * weights
    given = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    file = given + 8 * weights + _WRITTEN
    asked = {**request, "memory": memory, "seconds": seconds, "file": file}
    (folder / child.REQUEST).write_text(json.dumps(asked))
    with (folder / "stderr").open("w+b") as errors, _told(secret) as told:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module or child.__name__, str(folder)],
            stdin=told,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(folder, registry.settings.verify_environment),
            umask=0o077,
            start_new_session=True,
        )
        try:
            _watch(registry, process, seconds, progress)
        finally:
            _end(process)
        if process.returncode:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _MOST_STDERR))
            words = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ChildError(f"ended with {process.returncode}: {' '.join(words)}")
    return _result(folder)


@contextlib.contextmanager
def _told(secret: bytes) -> Iterator[int]:
    """Something to read a secret from that is in memory alone."""
    if not secret:
        yield subprocess.DEVNULL
        return
    with os.fdopen(os.memfd_create("told"), "w+b") as file:
        file.write(secret)
        file.seek(0)
        yield file.fileno()


def _watch(
    registry: Registry, process: "subprocess.Popen[bytes]", seconds: int, progress: Progress
) -> None:
    assert process.stdout is not None
    until = time.monotonic() + seconds
    with process.stdout as out, selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        rest = b""
        while True:
            if registry.jobs.stopping.is_set():
                raise Later(0)
            if time.monotonic() > until:
                raise SlowError(f"took longer than {seconds} s")
            if not selector.select(_POLL):
                continue
            data = os.read(out.fileno(), 65536)
            if not data:
                break
            *lines, rest = (rest + data)[-65536:].split(b"\n")
            if lines:
                progress(_words(lines[-1]))
    process.wait(max(1, until - time.monotonic()))


def _words(line: bytes) -> str:
    """A line of the child; a task may print what it likes, too."""
    try:
        told = json.loads(line)
        return f"{told['doing']}: {told['done']} of {told['total']}"[:256]
    except (ValueError, TypeError, KeyError):
        return "running"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the child and whatever it started, if anything is left of them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _result(folder: Path) -> dict[str, Any]:
    path = folder / child.RESULT
    try:
        if path.stat().st_size > _MOST_RESULT:
            raise ChildError("its result is too large")
        result: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ChildError(f"left no result: {error}") from error
    if "error" in result:
        kind = RefusedError if result["kind"] in _PROVERS else ChildError
        raise kind(f"{result['kind']}: {result['error']}")
    return result


def _environment(folder: Path, more: Collection[str] = ()) -> dict[str, str]:
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name in more or name.startswith(_PASSED_BEGINNINGS)
    }
    return {**passed, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
