"""Writing a proof: one shard at a time, so that a kill at any instant loses none.

Every sealing only adds files; replacing `manifest.json` is the one step that makes them part of
the proof. Files that no manifest lists are leftovers of a killed sealing and are removed when the
proof is opened for writing again.

What a prover keeps for itself lies *beside* the proof, in `<proof>.state/`: the lock, the secret
that the obfuscation comes from, and the training state to resume from. The proof folder holds
only what is handed over.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from polo.errors import LockedError, StoreError
from polo.protocol import signing
from polo.protocol.commitment import Opening
from polo.protocol.layout import Layout
from polo.protocol.records import File, Manifest, Nonce, Retention, Shard
from polo.storage import atomic, delta, openings
from polo.storage.folder import (
    LAYOUT_FILE,
    MANIFEST_FILE,
    ProofFolder,
    checkpoint_path,
    nonce_path,
    opening_path,
)
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import FileCheckpoint, write_checkpoint


class ProofWriter:
    """A proof on disk, for the one process that writes it.

    Args:
        path: The proof folder; created if missing.
        signer: The prover's key.
        retention: What to keep.
    """

    def __init__(self, path: Path | str, signer: signing.Signer, retention: Retention) -> None:
        self.path = Path(path)
        self.state_path = self.path.with_name(self.path.name + ".state")
        self.manifest: Manifest | None = None
        self._signer = signer
        self.retention = retention
        self.state_path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(self.state_path / "lock", self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / MANIFEST_FILE).exists():
            self.manifest = ProofFolder(self.path).manifest()
            if self.manifest.retention != retention:
                self.close()
                raise StoreError(
                    f"was begun with retention {self.manifest.retention.kind}; keep to it",
                    place=str(self.path),
                )
        self._remove_leftovers()

    @property
    def secret(self) -> bytes:
        """The secret of this proof's obfuscation; drawn once, never in the proof."""
        path = self.state_path / "secret"
        if not path.exists():
            with atomic.replacing(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(secrets.token_bytes(32))
        return path.read_bytes()

    def training_state(self, shard: int) -> Path:
        """Where the training state at the end of a shard is kept."""
        return self.state_path / f"{shard:06d}.safetensors"

    def begin(self, manifest: Manifest, layout: Layout, checkpoint: Checkpoint) -> None:
        """Start a proof with its W_0."""
        files = [
            self._put(LAYOUT_FILE, layout.to_bytes()),
            self._put_checkpoint(0, checkpoint),
        ]
        self._commit(replace(manifest, files=tuple(files)))

    def seal(self, shard: Shard, checkpoint: Checkpoint, opening: Opening, nonce: Nonce) -> None:
        """Add a sealed shard."""
        manifest = self._begun()
        number = shard.shard
        files = {file.path: file for file in manifest.files}
        for file in (
            self._put_checkpoint(number, checkpoint),
            self._put(opening_path(number), openings.encode(opening)),
            self._put(nonce_path(number), nonce.to_bytes()),
        ):
            files[file.path] = file
        self._retire(number, files, checkpoint.layout)
        shards = (*manifest.shards, shard)
        self._commit(replace(manifest, shards=shards, files=_sorted(files), finished=False))

    def finish(self, outside: int) -> Manifest:
        """Close the proof, saying how many steps after the last shard are not part of it."""
        self._commit(replace(self._begun(), finished=True, outside=outside))
        return self._begun()

    def close(self) -> None:
        """Let others write."""
        self._lock.close()

    def _begun(self) -> Manifest:
        if self.manifest is None:
            raise StoreError("the proof has not begun", place=str(self.path))
        return self.manifest

    def _commit(self, manifest: Manifest) -> None:
        manifest = signing.sign(manifest, self._signer)
        atomic.write(self.path / MANIFEST_FILE, manifest.to_bytes())
        self.manifest = manifest
        self._remove_leftovers()

    def _retire(self, new: int, files: dict[str, File], layout: Layout) -> None:
        """Drop or shrink the checkpoints before the newest, as retention says."""
        every = {"all": 1, "every": self.retention.every, "thin": 0}[self.retention.kind]
        if not every or (new - 1) % every:
            files.pop(checkpoint_path(new - 1), None)
        older = new - every
        if every and new % every == 0 and self.retention.deltas:
            file = self._put_delta(older, self.path / checkpoint_path(older), new, layout)
            files[file.path] = file
            del files[checkpoint_path(older)]

    def _put_delta(self, old: int, whole: Path, new: int, layout: Layout) -> File:
        name = checkpoint_path(old, delta=True)
        with (
            FileCheckpoint.canonical(whole, layout) as older,
            FileCheckpoint.canonical(self.path / checkpoint_path(new), layout) as newer,
            atomic.replacing(self.path / name) as file,
        ):
            delta.write_delta(older, newer, file)
        return self._listed(name)

    def _put(self, name: str, data: bytes) -> File:
        atomic.write(self.path / name, data)
        return File(name, len(data), hashlib.sha256(data).digest())

    def _put_checkpoint(self, shard: int, checkpoint: Checkpoint) -> File:
        name = checkpoint_path(shard)
        with atomic.replacing(self.path / name) as file:
            hashing = _Hashing(file)
            write_checkpoint(checkpoint, hashing)
        return File(name, hashing.size, hashing.digest())

    def _listed(self, name: str) -> File:
        with (self.path / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            return File(name, os.fstat(file.fileno()).st_size, digest)

    def _remove_leftovers(self) -> None:
        """Remove what a killed sealing left behind, and states that no resume will need."""
        if self.manifest is None:
            for name in ("checkpoints", "openings", "nonces"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            return
        for name in list(ProofFolder(self.path).strangers(self.manifest)):
            (self.path / name).unlink(missing_ok=True)
        current = self.training_state(len(self.manifest.shards))
        for path in self.state_path.glob("[0-9]*.safetensors"):
            if path != current and current.exists():
                path.unlink(missing_ok=True)


class _Hashing:
    """Passes bytes on to a file and hashes them."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = 0
        self._file = file
        self._state = hashlib.sha256()

    def __call__(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._state.update(data)
        self.size += len(data)

    def digest(self) -> bytes:
        return self._state.digest()


def _sorted(files: dict[str, File]) -> tuple[File, ...]:
    return tuple(files[path] for path in sorted(files))


def _lock(path: Path, proof: Path) -> BinaryIO:
    """An exclusive lock that the system lets go of when the process ends, however it ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LockedError(
            "another process is writing this proof",
            place=str(proof),
            advice="Wait for it, or give this run a store of its own.",
        ) from error
    return file
