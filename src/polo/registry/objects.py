"""Files that the registry keeps: by the digest of their bytes, in a folder or in a bucket.

An object is written once and never changed: its name is the SHA-256 of its bytes, which is checked
when it is written and again when it is read. Large files are streamed, never held in memory.
"""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from polo.errors import LimitError, StoreError
from polo.storage import atomic

MOST_IN_MEMORY = 64 * 2**20
"""Bytes of an object that `get` reads; larger ones are fetched into a file."""

_PIECE = 2**20
_SINGLE = 5 * 2**20
"""Up to this size a put is one request that the store itself refuses if the object exists."""

_KEY = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")

_UNFINISHED = re.compile(r"[0-9a-f]{64}#[0-9]+")
"""What obstore calls a file until all of it is there."""


def key_of(sha256: str | bytes) -> str:
    """The key of an object, by its SHA-256 (in hexadecimal, or raw).

    >>> key_of("ab" * 32)[:16]
    'sha256/ab/ababab'
    """
    digest = sha256.hex() if isinstance(sha256, bytes) else sha256
    return f"sha256/{digest[:2]}/{digest}"


class Objects:
    """An object store.

    Args:
        url: A folder (a path or `file:///…`), `memory:///`, `s3://bucket/prefix`, or another URL
            that obstore knows.
        options: Settings of the store, such as `endpoint` and keys for S3; what is not given
            comes from the usual environment variables.
    """

    def __init__(self, url: str | Path, **options: Any) -> None:
        self.url = str(url)
        self._folder: Path | None = None
        self._lasting: set[Path] = set()
        self._store = self._opened(options)

    def _opened(self, options: dict[str, Any]) -> ObjectStore:
        if self.url.startswith("memory:"):
            return MemoryStore()
        if "://" in self.url and not self.url.startswith("file://"):
            try:
                return from_url(self.url, **options)
            except (BaseError, ValueError) as error:
                raise StoreError(f"is no object store: {error}", place=self.url) from error
        self._folder = Path(self.url.removeprefix("file://")).absolute()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return LocalStore(self._folder)

    def put(self, key: str, source: Path | bytes) -> None:
        """Store an object; one that is there already stays as it is.

        Raises:
            StoreError: The bytes are not those that the key names, or the store refuses.
            OSError: The disk is full.
        """
        digest = _digest_in(key)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if _sha256(source) != digest:
            raise StoreError("the bytes are not those that the key names", place=key)
        if self.size(key) == size:
            return
        with _explained(key):
            if size <= _SINGLE:
                data = source if isinstance(source, bytes) else source.read_bytes()
                with contextlib.suppress(AlreadyExistsError):
                    obstore.put(self._store, key, data, mode="create")
            else:
                # In parts no store can refuse what exists; by its name it is the same bytes.
                obstore.put(self._store, key, source, chunk_size=_SINGLE, max_concurrency=2)
        self._sync(key)

    def get(self, key: str, most: int = MOST_IN_MEMORY) -> bytes:
        """A small object's bytes, as they were stored."""
        size = self.size(key)
        if size is not None and size > most:
            raise LimitError(f"{size} bytes; at most {most} are read", place=key)
        data = b"".join(self._pieces(key))
        if hashlib.sha256(data).hexdigest() != _digest_in(key):
            raise _damaged(key)
        return data

    def fetch(self, key: str, to: Path) -> None:
        """Copy an object into a file, which exists only if all of it came as it was stored."""
        state = hashlib.sha256()
        with atomic.replacing(to, mode=0o600) as file:
            for piece in self._pieces(key):
                state.update(piece)
                file.write(piece)
            if state.hexdigest() != _digest_in(key):
                raise _damaged(key)

    def check(self, key: str) -> None:
        """Read an object through, and refuse it unless its bytes are those that were stored."""
        state = hashlib.sha256()
        for piece in self._pieces(key):
            state.update(piece)
        if state.hexdigest() != _digest_in(key):
            raise _damaged(key)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        _digest_in(key)
        with _explained(key), contextlib.suppress(NotFoundError, FileNotFoundError):
            obstore.delete(self._store, key)

    def size(self, key: str) -> int | None:
        """How many bytes an object has; None if there is none."""
        _digest_in(key)
        with _explained(key):
            try:
                return obstore.head(self._store, key)["size"]
            except (NotFoundError, FileNotFoundError):
                return None

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        return self.size(key) is not None

    def keys(self) -> Iterator[str]:
        """Keys of all objects, in no order."""
        return (key for key, _ in self.listed())

    def listed(self) -> Iterator[tuple[str, float]]:
        """Keys of all objects, in no order, each with when it was written (seconds since 1970)."""
        with _explained(self.url):
            for found in obstore.list(self._store, "sha256"):
                for item in found:
                    if _KEY.fullmatch(item["path"]):
                        yield item["path"], item["last_modified"].timestamp()

    def tidy(self, age: int) -> int:
        """Remove what writers that were killed left unfinished in a folder; how many files.

        A bucket has rules of its own for that.

        Args:
            age: Seconds after which nobody writes it any more.
        """
        gone = 0
        for path in self._folder.glob("sha256/??/*#*") if self._folder else ():
            with contextlib.suppress(FileNotFoundError):
                if _UNFINISHED.fullmatch(path.name) and time.time() - path.stat().st_mtime > age:
                    path.unlink()
                    gone += 1
        return gone

    def _pieces(self, key: str) -> Iterator[bytes]:
        with _explained(key):
            try:
                found = obstore.get(self._store, key)
            except (NotFoundError, FileNotFoundError) as error:
                raise StoreError("there is no such object", place=key) from error
            for piece in found.stream(min_chunk_size=_PIECE):
                yield bytes(piece)

    def _sync(self, key: str) -> None:
        """Make a local object survive a power cut: obstore does not wait for the disk."""
        if self._folder is None:
            return
        path = self._folder / key
        with path.open("rb") as file:
            os.fsync(file.fileno())
        atomic.sync_folder(path.parent)
        if path.parent not in self._lasting:  # Made just now, perhaps; folders are never removed.
            for folder in (path.parent.parent, self._folder):
                atomic.sync_folder(folder)
            self._lasting.add(path.parent)


def _digest_in(key: str) -> str:
    found = _KEY.fullmatch(key)
    if found is None:
        raise StoreError("is no key of an object", place=key[:120])
    return found[2]


def _sha256(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(key: str) -> StoreError:
    return StoreError(
        "the stored bytes are not those that were put there",
        place=key,
        advice="Bring the object back from a backup; polo registry doctor names all such.",
    )


@contextlib.contextmanager
def _explained(place: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, FileNotFoundError) as error:  # The latter for a bucket that is not there.
        if "No space left" in str(error):
            raise OSError(28, "No space left on device") from error
        words = str(error).splitlines()[0][:300]
        raise StoreError(f"the object store says: {words}", place=place) from error
