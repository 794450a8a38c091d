"""Room on the disk for found files: promised to each before it comes, so that no two share it."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from polo.registry.problems import CODES, Problem

CODES.update({"scan.no-room": "The registry has no room for such a file now; try later."})

SPARE = 2**30
"""Bytes of the disk that found files leave alone: on a full one nothing could be committed."""

COPIES = 3
"""A file is there as it comes, then in the store, and once more while it is looked at."""

_LOCK = threading.Lock()
_promised = 0


@contextlib.contextmanager
def promised(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """Keep room for a file of so many bytes, as long as it is coming in.

    Args:
        folder: Where it goes to.
        size: Its bytes.

    Yields:
        To be told how many bytes were written: those take room by themselves.

    Raises:
        Problem: There is not so much room beside what others were promised.
    """
    global _promised
    own = COPIES * size
    with _LOCK:
        if shutil.disk_usage(folder).free < SPARE + _promised + own:
            raise Problem(
                507,
                "scan.no-room",
                "there is no room for this file now",
                advice="Try again later.",
                headers={"Retry-After": "600", "Connection": "close"},
            )
        _promised += own

    def wrote(count: int) -> None:
        nonlocal own
        global _promised
        with _LOCK:
            count = min(count, own)
            own -= count
            _promised -= count

    try:
        yield wrote
    finally:
        with _LOCK:
            _promised -= own
