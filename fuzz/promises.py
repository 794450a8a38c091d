"""The promises that every target keeps, and how each is noticed when it is broken."""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polo.errors import PoloError

MIB = 2**20
_LONGEST_ERROR = 2000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOWHERE = -1
_PLACES = {
    "os.mkdir": ((0, 2),), "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.chmod": ((0, 2),),
    "os.utime": ((0, 3),), "os.chown": ((0, 3),), "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),), "os.symlink": ((1, 2),), "os.truncate": ((0, _NOWHERE),),
}  # fmt: skip
"""Events of the interpreter that change the disk; which arguments are a path and its folder.

What a link leads to is its own affair; where it lies is not.
"""


class BrokenPromiseError(AssertionError):
    """A promise that did not hold."""


def require(holds: bool, promise: str) -> None:
    """Raise unless a promise holds."""
    if not holds:
        raise BrokenPromiseError(promise)


@contextlib.contextmanager
def refusals(*, placed: bool = True) -> Iterator[None]:
    """Lets a PoloError pass, if it is one that a person can read; nothing else.

    Args:
        placed: Whether the error must name a place.
    """
    try:
        yield
    except PoloError as error:
        text = error.diagnostics()
        require(bool(error.message), "an error says what is wrong")
        require(bool(error.place) or not placed, f"an error names the place: {text[:200]}")
        require(len(text) <= _LONGEST_ERROR, f"an error is short: {text[:200]}")
        require(_encodable(text), f"an error can be printed: {text[:200]!a}")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def frugal(most_mib: int) -> Iterator[None]:
    """Refuses a block that takes more memory than this at any moment."""
    # Where the kernel does not let go of the peak so far, that is where we start.
    before = resident() if forget_peak() else peak()
    try:
        yield
    finally:
        taken = peak() - before
        require(taken <= most_mib * MIB, f"{taken // MIB} MiB of memory for one input")


def resident() -> int:
    """Bytes of memory that this process has now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def peak() -> int:
    """Most bytes of memory that this process has had."""
    # Not `ru_maxrss`, which begins with that of the process that started this one.
    status = Path("/proc/self/status").read_bytes()
    return int(status.partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def forget_peak() -> bool:
    """Measure the peak of memory from here on; whether the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def limit_memory(more_mib: int) -> None:
    """Let this process grow by so much and no further; beyond that it gets a MemoryError."""
    fields = Path("/proc/self/statm").read_text().split()
    most = int(fields[0]) * resource.getpagesize() + more_mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


_confined: list[str] = []
_broken: list[str] = []


@contextlib.contextmanager
def confined(*folders: Path) -> Iterator[None]:
    """Refuses a block that changes anything on disk outside these folders."""
    _install()
    _confined[:] = [os.path.realpath(folder) for folder in folders]
    _broken.clear()
    try:
        yield
    finally:
        _confined.clear()
    require(not _broken, f"nothing is written elsewhere: {_broken[:3]}")


def _install() -> None:
    if not getattr(sys, "_polo_fuzz_watches", False):
        sys.addaudithook(_watch)
        sys._polo_fuzz_watches = True  # type: ignore[attr-defined]


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _confined:
        return
    places = _PLACES.get(event, ())
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        places = ((0, _NOWHERE),)
    for at, folder in places:
        if not isinstance(arguments[at], int):
            path = os.fsdecode(arguments[at])
            if folder != _NOWHERE and arguments[folder] != _NOWHERE:
                path = f"/proc/self/fd/{arguments[folder]}/{path}"
            if not _inside(path):
                _broken.append(f"{event} {path[:200]!r}")


def _inside(path: str) -> bool:
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return any(real == folder or real.startswith(folder + os.sep) for folder in _confined)
