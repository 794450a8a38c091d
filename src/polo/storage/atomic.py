"""Writing files so that a crash leaves either the old one or the new one, never half."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".partial"


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, unguessable: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is written and on disk.

    Args:
        path: The file.
        mode: Who may read it, from the first byte on; the user's mask applies.
        unguessable: Write under a name that nobody can lay anything in the way of. Otherwise it is
            a fixed name, which whoever cleans up after a kill finds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + TEMPORARY)
    if unguessable:
        partial = path.with_name(f".polo-{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with _fresh(partial, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        # A full disk, say: half a checkpoint would only keep it full.
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write(path: Path, data: bytes, *, unguessable: bool = False) -> None:
    """Write a whole file."""
    with replacing(path, unguessable=unguessable) as file:
        file.write(data)


def _fresh(path: Path, mode: int) -> BinaryIO:
    """A new file; a leftover goes first, and a link is removed instead of followed."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
