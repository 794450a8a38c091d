"""How many processes measure on this machine at once: each holds a file while it does.

Files are locked, and the system lets go of a lock when its process ends, however it ends: those of
dead processes do not count. Whoever begins writes the new number into all files, so that each run
knows the most that it ever shared the machine with, whichever call they belong to.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(tempfile.gettempdir()) / f"polo-lab-running-{os.getuid()}"
"""Where the files lie."""


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """In here this process counts; the function says how many did at the same time, at most."""
    FOLDER.mkdir(exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{os.getpid()}-", dir=FOLDER)
    path = Path(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        running = [other for other in FOLDER.iterdir() if _locked(other)]
        for other in running:
            _tell(other, len(running))
        yield lambda: max(int(line) for line in path.read_text().split())
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> bool:
    """Whether the process that made a file still runs."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _tell(path: Path, count: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        # It has ended since.
        return
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(f"{count}\n".encode())
