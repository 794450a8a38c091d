"""Reading a proof folder that somebody else wrote.

Nothing in it is trusted: paths come from a fixed pattern, links and odd files are refused, sizes
are compared before anything is read, every file's digest is in the signed manifest.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from polo.errors import FormatError, LimitError, StoreError
from polo.protocol import canonical
from polo.protocol.digest import SIZE
from polo.protocol.layout import CHUNK_BYTES, Layout
from polo.protocol.records import Bundle, File, Manifest, Nonce, SchemeTerms, Transfer
from polo.weights.files import FileCheckpoint, header_of, open_plain

MANIFEST_FILE = "manifest.json"
LAYOUT_FILE = "layout.json"
TRANSFER_FILE = "transfer.json"
BUNDLE_FILE = "bundle.json"
ANCESTORS_FOLDER = "ancestors"
_MAX_NONCE_FILE = 16 * 1024
MAX_TRANSFER_FILE = 16 * 1024
MAX_BUNDLE_FILE = 128 * 1024
_MAX_EVIDENCE_FILE = 96 * 2**20
_MAX_ENTRIES = 500_000


def checkpoint_path(shard: int, *, delta: bool = False) -> str:
    """Path of a checkpoint inside a proof."""
    return f"checkpoints/{shard:06d}{'.delta' if delta else ''}.safetensors"


def opening_path(shard: int) -> str:
    """Path of an opening inside a proof."""
    return f"openings/{shard:06d}.safetensors"


def nonce_path(shard: int) -> str:
    """Path of an opened nonce inside a proof."""
    return f"nonces/{shard:06d}.json"


def evidence_path(level: str, shard: int) -> str:
    """Path of a shard's record of a further level inside a proof."""
    return f"evidence/{level}/{shard:06d}.safetensors"


def receipts_path(shard: int) -> str:
    """Path of the proof that a shard's commitment is in a registry's log."""
    return f"evidence/receipts/{shard:06d}.json"


def uniqueness_path(shard: int) -> str:
    """Path of the registry's statement that no other chain is in a shard's checkpoint."""
    return f"evidence/uniqueness/{shard:06d}.json"


def ancestor_path(number: int) -> str:
    """Path of an earlier owner's proof inside a proof; 1 is the first owner's."""
    return f"{ANCESTORS_FOLDER}/{number:06d}"


def state_path_of(proof: Path | str) -> Path:
    """What the holder of a proof keeps beside it, for nobody else.

    It goes with the proof, not with its name: through a link one finds the same.
    """
    path = Path(proof)
    if path.name in ("", "..") or path.is_symlink():
        path = Path(os.path.realpath(path))
    return path.with_name(path.name + ".state")


def rest_path(shard: int) -> str:
    """Name of the optimizer's state at the end of a shard, beside the proof."""
    return f"rest-{shard:06d}.safetensors"


def limits_of(layout: Layout, scheme: SchemeTerms) -> Callable[[str], int]:
    """Most bytes that a file of a proof can have, by path, so that no lie about it costs time."""
    # Once: a proof may list thousands of checkpoints, each of a hundred thousand tensors.
    whole = functools.cache(lambda: len(header_of(layout)) + layout.size)

    def most_bytes(path: str) -> int:
        kind = path.partition("/")[0]
        if kind == "checkpoints":
            return whole() + whole() // 64 + 2**20 if ".delta" in path else whole()
        if kind == "openings":
            return 1024 + scheme.blocks * (CHUNK_BYTES + 8 + 64 * SIZE)
        if kind == "nonces":
            return _MAX_NONCE_FILE
        if kind == "evidence":
            return _MAX_EVIDENCE_FILE
        return canonical.MAX_DOCUMENT_BYTES

    return most_bytes


class ProofFolder:
    """A proof on disk, for reading."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path):
            raise self._missing()

    def _missing(self, why: str = "") -> StoreError:
        return StoreError(
            f"there is no proof here{why}",
            place=str(self.path),
            advice=f"Give the folder that holds {MANIFEST_FILE}.",
        )

    def manifest(self) -> Manifest:
        """The manifest, parsed; its signature is not checked here."""
        if not os.path.lexists(self.path / MANIFEST_FILE):
            raise self._missing(f": it has no {MANIFEST_FILE}")
        return Manifest.from_bytes(
            self._read(MANIFEST_FILE, canonical.MAX_DOCUMENT_BYTES), MANIFEST_FILE
        )

    def layout(self) -> Layout:
        """The layout, parsed; whether the terms name it is not checked here."""
        return Layout.from_bytes(self.layout_bytes(), LAYOUT_FILE)

    def layout_bytes(self) -> bytes:
        """The layout's document."""
        return self._read(LAYOUT_FILE, canonical.MAX_DOCUMENT_BYTES)

    def nonce(self, shard: int) -> Nonce:
        """The opened nonce of a shard."""
        place = nonce_path(shard)
        return Nonce.from_bytes(self._read(place, _MAX_NONCE_FILE), place)

    def transfer(self) -> Transfer:
        """The transfer by which the owner got the model; its signatures are not checked here."""
        return Transfer.from_bytes(self._read(TRANSFER_FILE, MAX_TRANSFER_FILE), TRANSFER_FILE)

    def bundle(self) -> Bundle | None:
        """What part of a proof this is, as the folder says; None if it does not say."""
        if not os.path.lexists(self.path / BUNDLE_FILE):
            return None
        return Bundle.from_bytes(self._read(BUNDLE_FILE, MAX_BUNDLE_FILE), BUNDLE_FILE)

    def checkpoint(self, shard: int, layout: Layout) -> FileCheckpoint:
        """The stored checkpoint of a shard; its root is not checked here."""
        return FileCheckpoint.canonical(self.file(checkpoint_path(shard)), layout)

    def strangers(self, manifest: Manifest) -> Iterator[str]:
        """Everything in the folder that the manifest does not list, or that is no plain file."""
        listed = {file.path for file in manifest.files} | {MANIFEST_FILE, BUNDLE_FILE}
        if manifest.transfer is not None:
            listed.add(TRANSFER_FILE)
        folders = {"/".join(p.split("/")[:at]) for p in listed for at in range(1, p.count("/") + 1)}
        waiting, seen = [self.path], 0
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MAX_ENTRIES:
                        raise LimitError("too many files", place=str(self.path))
                    name = Path(entry.path).relative_to(self.path).as_posix()
                    if entry.is_dir(follow_symlinks=False) and name in folders:
                        waiting.append(Path(entry.path))
                    elif name not in listed or not entry.is_file(follow_symlinks=False):
                        yield name

    def file(self, name: str) -> Path:
        """Where a file of the proof lies; one that lies behind a link is refused."""
        path = self.path / name
        for folder in path.relative_to(self.path).parents:
            if (self.path / folder).is_symlink() and str(folder) != ".":
                raise StoreError("lies behind a link", place=name)
        return path

    def check_file(
        self,
        file: File,
        most: int,
        digest: Callable[[BinaryIO, int], bytes | None] = lambda *_: None,
    ) -> None:
        """Refuse a file whose size or digest is not what the manifest says.

        Args:
            file: What the manifest says.
            most: Most bytes that such a file can have; a larger one is not read at all.
            digest: Computes the SHA-256 of a file of so many bytes, or leaves it to this.
        """
        if file.size > most:
            raise LimitError(f"{file.size} bytes; it can have {most} at most", place=file.path)
        with open_plain(self.file(file.path)) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size != file.size:
                raise FormatError(
                    f"has {size} bytes; the manifest says {file.size}", place=file.path
                )
            found = digest(handle, size) or hashlib.file_digest(handle, "sha256").digest()  # type: ignore[arg-type]
            if found != file.sha256:
                raise FormatError("its bytes are not those that were signed", place=file.path)

    def _read(self, name: str, limit: int) -> bytes:
        with open_plain(self.file(name)) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise LimitError(f"more than {limit} bytes", place=name)
        return data
