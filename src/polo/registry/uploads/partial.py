"""The part of an upload that is there already: one plain file in the data folder."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from polo.registry.problems import CODES, Problem
from polo.storage import atomic

CODES.update(
    {
        "upload.busy": "Another piece of this upload is being written; ask how far it is.",
        "upload.lost": "The registry lost what it had of this upload; begin again.",
        "upload.no-space": "The registry has no room for this now; what it has, it keeps.",
    }
)

SPARE = 2**28
"""Bytes of the disk that uploads leave alone: on a full one nothing could be committed."""

_FOLDER = "uploads"
_SERVER = "server.id"
_ID = re.compile(r"[0-9a-f]{32}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Lost(Problem):
    """The partial file is not there, or not all of what was acknowledged."""

    def __init__(self) -> None:
        super().__init__(
            409,
            "upload.lost",
            "the registry has lost this upload",
            advice="Delete it, and begin again.",
        )


class Partial:
    """A partial file, for whoever holds its lock.

    Args:
        path: The file.
        handle: Open for reading and writing.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    def append(self, offset: int, data: bytes) -> None:
        """Write a piece, and wait until it is on the disk.

        What lies after the offset was never acknowledged, and goes.
        """
        if os.fstat(self._handle).st_size < offset:
            raise Lost
        check_room(self.path.parent, len(data))
        try:
            os.ftruncate(self._handle, offset)
            view, at = memoryview(data), offset
            while view:
                written = os.pwrite(self._handle, view, at)
                view, at = view[written:], at + written
            os.fsync(self._handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, offset)
            raise no_space(error) from error

    def sha256(self) -> str:
        """The digest of all that is there."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def remove(self) -> None:
        """Remove the file; the lock stays until the block ends."""
        self.path.unlink(missing_ok=True)


def no_space(error: OSError) -> Exception:
    """The problem that a full disk is; any other trouble stays what it is."""
    if error.errno not in _FULL:
        return error
    return Problem(
        507,
        "upload.no-space",
        "the registry's disk is full",
        advice="Nothing that was acknowledged is lost; go on later.",
        headers={"Retry-After": "60"},
    )


def check_room(data: Path, size: int) -> None:
    """Refuse bytes that would fill the disk."""
    if shutil.disk_usage(data).free < size + SPARE:
        raise no_space(OSError(errno.ENOSPC, "too little is left"))


def path_of(data: Path, upload: str) -> Path:
    """Where the partial file of an upload lies."""
    if not _ID.fullmatch(upload):
        raise Problem(404, "upload.missing", "there is no such upload")
    return data / _FOLDER / upload


def server_of(data: Path) -> str:
    """A word for this folder: servers that share it can go on with each other's uploads."""
    path = data / _FOLDER / _SERVER
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f".{_SERVER}.{secrets.token_hex(8)}")
        atomic.write(fresh, secrets.token_hex(16).encode())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # Unlike a rename it never replaces one made meanwhile.
        fresh.unlink()
    except OSError as error:
        raise no_space(error) from error
    return path.read_text()


def create(data: Path, upload: str) -> None:
    """Make an empty partial file that survives a power cut."""
    path = path_of(data, upload)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        atomic.sync_folder(path.parent)
    except OSError as error:
        raise no_space(error) from error


@contextlib.contextmanager
def locked(data: Path, upload: str) -> Iterator[Partial]:
    """The partial file, for one thread of one process at a time."""
    path = path_of(data, upload)
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Lost from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Problem(
                409,
                "upload.busy",
                "another piece of this upload is being written",
                advice="Send one piece at a time; ask how far it is, and go on from there.",
            ) from error
        yield Partial(path, handle)
    finally:
        os.close(handle)


def remove(data: Path, upload: str) -> None:
    """Remove a partial file, if it is there."""
    path_of(data, upload).unlink(missing_ok=True)


def all_of(data: Path) -> Iterator[str]:
    """Ids of all uploads that have a partial file."""
    with contextlib.suppress(FileNotFoundError):
        yield from (name for name in os.listdir(data / _FOLDER) if _ID.fullmatch(name))
