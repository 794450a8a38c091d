"""Writing files so that a crash leaves either the old one or the new one, never half."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".partial"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is written and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + TEMPORARY)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        # A full disk, say: half a checkpoint would only keep it full.
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write(path: Path, data: bytes) -> None:
    """Write a whole file."""
    with replacing(path) as file:
        file.write(data)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
