"""A folder in memory for the files of one input at a time."""

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def _root() -> Path:
    shared = Path("/dev/shm")
    parent = shared if os.access(shared, os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="polo-fuzz-", dir=parent))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def file(data: bytes, name: str = "input") -> Path:
    """A file that holds these bytes, in the place of the last one of this name."""
    path = _root() / name
    path.write_bytes(data)
    return path


def folder(name: str = "folder") -> Path:
    """An empty folder, in the place of the last one of this name."""
    path = _root() / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[None]:
    """Makes Python's temporary files go here."""
    before = tempfile.tempdir
    tempfile.tempdir = str(path)
    try:
        yield
    finally:
        tempfile.tempdir = before
