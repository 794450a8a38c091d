"""Writing a proof: one shard at a time, so that a kill at any instant loses none.

Every sealing only adds files; replacing `manifest.json` is the one step that makes them part of
the proof. Files of a proof that no manifest lists are leftovers of a killed sealing and are removed
when the proof is opened for writing again. Nothing else is ever removed, and a folder that holds
other files is not made into a proof.

What a prover keeps for itself lies *beside* the proof, in `<proof>.state/`: the lock, the secret
that the obfuscation comes from, the training state to resume from, and a registry's last answer.
The proof folder holds only what is handed over.
"""

import fcntl
import hashlib
import itertools
import os
import re
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from polo.errors import LockedError, StoreError
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.commitment import Opening
from polo.protocol.entries import Inclusions
from polo.protocol.layout import Layout
from polo.protocol.records import FILE_PATTERN, File, Manifest, Nonce, Retention, Shard, Transfer
from polo.protocol.uniqueness import Uniqueness
from polo.receipts import Answer, Submission
from polo.storage import atomic, delta, openings, received
from polo.storage.folder import (
    ANCESTORS_FOLDER,
    LAYOUT_FILE,
    MANIFEST_FILE,
    TRANSFER_FILE,
    ProofFolder,
    checkpoint_path,
    evidence_path,
    nonce_path,
    opening_path,
    receipts_path,
    rest_path,
    state_path_of,
    uniqueness_path,
)
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import FileCheckpoint, write_checkpoint

_UNHASHED = 4
"""Pieces of a file at most that wait to be hashed: those of some checkpoints are copies."""

_FOLDERS = (
    "checkpoints",
    "openings",
    "nonces",
    "evidence/*",
    "evidence",
    f"{ANCESTORS_FOLDER}/*/*",
    f"{ANCESTORS_FOLDER}/*",
    ANCESTORS_FOLDER,
)
_OURS = re.compile(f"({FILE_PATTERN}|{re.escape(MANIFEST_FILE)})({re.escape(atomic.TEMPORARY)})?")
_BOUGHT = re.compile(
    rf"(transfer\.json|{ANCESTORS_FOLDER}/[0-9]{{6}}/"
    rf"({FILE_PATTERN}|manifest\.json|transfer\.json|bundle\.json))({re.escape(atomic.TEMPORARY)})?"
)
"""What a transfer brings; no list of files names it, the manifest's `transfer` stands for it."""


class ProofWriter:
    """A proof on disk, for the one process that writes it.

    Args:
        path: The proof folder; created if missing, for its owner's eyes only.
        signer: The prover's key.
        retention: What to keep.
    """

    def __init__(self, path: Path | str, signer: signing.Signer, retention: Retention) -> None:
        self.path = Path(path)
        if self.path.name in ("", ".."):
            self.path = self.path.resolve()
        self.state_path = state_path_of(self.path)
        self.manifest: Manifest | None = None
        self._signer = signer
        self.retention = retention
        self.state_path.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Let go of the lock when the object goes, too: an abandoned prover in a notebook, say.
        handle = _lock(self.state_path / "lock", self.path)
        self._unlock = weakref.finalize(self, _release, handle, os.getpid())
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        # Nonces lie in it; whoever opened an existing folder to others keeps it so.
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self.path / MANIFEST_FILE).exists():
            folder = ProofFolder(self.path)
            if folder.bundle() is not None:
                raise StoreError(
                    "holds part of a proof, which cannot be gone on with",
                    place=str(self.path),
                    advice="Give the whole proof, or a folder that does not exist yet.",
                )
            self.manifest = folder.manifest()
            own = self._signer.public_key
            signing.check(self.manifest, own, Ed25519Verifier(), place=str(self.path))
            if self.manifest.retention != self.retention:
                begun = self.manifest.retention
                raise StoreError(
                    f"was begun with retention {begun.kind}, every {begun.every}, "
                    f"deltas {begun.deltas}; keep to it",
                    place=str(self.path),
                )
        elif any(self.path.iterdir()) and not (self.state_path / "secret").exists():
            raise StoreError(
                "holds files, but no proof",
                place=str(self.path),
                advice="Give this run an empty folder, or one that does not exist yet.",
            )
        self._remove_leftovers()

    @property
    def secret(self) -> bytes:
        """The secret of this proof's obfuscation; drawn once, never in the proof."""
        self._check_held()
        path = self.state_path / "secret"
        if not path.exists():
            with atomic.replacing(path, mode=0o600) as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()

    def training_state(self, shard: int) -> Path:
        """Where the training state at the end of a shard is kept."""
        return self.state_path / f"{shard:06d}.safetensors"

    def begin(self, manifest: Manifest, layout: Layout, checkpoint: Checkpoint) -> None:
        """Start a proof with its W_0."""
        self._check_held()
        files = (
            self._put_checkpoint(0, checkpoint),
            self._put(LAYOUT_FILE, layout.to_bytes()),
        )
        self._commit(replace(manifest, files=files))

    def seal(
        self,
        shard: Shard,
        checkpoint: Checkpoint,
        opening: Opening,
        nonce: Nonce,
        evidence: Mapping[str, bytes] | None = None,
        *,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        """Add a sealed shard.

        Args:
            shard: Its record.
            checkpoint: Its weights.
            opening: What its mark is read from.
            nonce: Its nonce.
            evidence: Records of further levels, by path.
            beside: Writes what must be on disk before the shard exists, on another thread.
        """
        manifest = self._begun()
        number = shard.shard
        files = {file.path: file for file in manifest.files}
        with ThreadPoolExecutor(1) as pool:
            meanwhile = pool.submit(beside)
            for file in (
                self._put_checkpoint(number, checkpoint),
                self._put(opening_path(number), openings.encode(opening)),
                self._put(nonce_path(number), nonce.to_bytes()),
                *(self._put(path, data) for path, data in (evidence or {}).items()),
            ):
                files[file.path] = file
            meanwhile.result()
        if not _is_live(manifest):
            self._retire(number, files, checkpoint.layout)
        shards = (*manifest.shards, shard)
        self._commit(replace(manifest, shards=shards, files=_sorted(files), finished=False))

    def submission(self) -> Submission:
        """What there is to commit to: the newest shard, or the start."""
        manifest = self._begun()
        if not manifest.shards:
            return Submission(replace(manifest.start, receipt=None), self.path)
        shard = replace(manifest.shards[-1], receipt=None)
        wanted = {
            "opening": opening_path(shard.shard),
            "checkpoint": checkpoint_path(shard.shard),
            "record": evidence_path("replay", shard.shard),
        }
        listed = {file.path: file for file in manifest.files}
        files = {kind: listed[path] for kind, path in wanted.items() if path in listed}
        return Submission(shard, self.path, files)

    def answer(self) -> Answer | None:
        """The answer to the newest commitment, if it was kept."""
        return received.kept(self.state_path, len(self._begun().shards))

    def complete(self, answer: Answer) -> None:
        """Add the receipt of the newest shard, or of the start.

        Until then the checkpoint before it is kept, since the registry may ask for a replay.
        """
        manifest = self._begun()
        number = len(manifest.shards)
        received.keep(self.state_path, number, answer)
        if number:
            files = {file.path: file for file in manifest.files}
            if inclusions := self._inclusions(answer, number):
                file = self._put(receipts_path(number), inclusions.to_bytes())
                files[file.path] = file
            self._retire(number, files, ProofFolder(self.path).layout())
            newest = replace(manifest.shards[-1], receipt=answer.receipt)
            shards = (*manifest.shards[:-1], newest)
            self._commit(replace(manifest, shards=shards, files=_sorted(files)))
        else:
            start = replace(manifest.start, receipt=answer.receipt)
            self._commit(replace(manifest, start=start))
        received.forget(self.state_path, before=number)
        if number and self.retention.kind == "thin":
            # With the checkpoint that it belongs to gone, nobody can compute anything from it.
            (self.state_path / rest_path(number - 1)).unlink(missing_ok=True)

    def _inclusions(self, answer: Answer, number: int) -> Inclusions | None:
        """What shows a shard in the log; with the first shard the start, which has no file."""
        asked = {item.level for item in self._begun().terms.evidence}
        first = received.kept(self.state_path, 0) if number == 1 else None
        found = [item.inclusion for item in (first, answer) if item and item.inclusion]
        return Inclusions(tuple(found)) if "receipts" in asked and found else None

    def finish(self, outside: int) -> Manifest:
        """Close the proof, saying how many steps after the last shard are not part of it."""
        self._commit(replace(self._begun(), finished=True, outside=outside))
        return self._begun()

    def take_over(self, transfer: Transfer) -> Manifest:
        """Bind the transfer by which the owner got the model; the ancestors are there already."""
        manifest = self._begun()
        atomic.write(self.path / TRANSFER_FILE, transfer.to_bytes())
        self._commit(replace(manifest, transfer=transfer.digest))
        return self._begun()

    def add_statement(self, statement: Uniqueness) -> Manifest:
        """Add what the registry says of the newest checkpoint."""
        manifest = self._begun()
        files = {file.path: file for file in manifest.files}
        file = self._put(uniqueness_path(len(manifest.shards)), statement.to_bytes())
        self._commit(replace(manifest, files=_sorted(files | {file.path: file})))
        return self._begun()

    def replace_inclusions(self, inclusions: Mapping[int, Inclusions]) -> Manifest:
        """Show shards under other checkpoints of the log, such as ones that witnesses cosigned.

        A kill in between leaves files that are not as signed; doing it again mends that.
        """
        manifest = self._begun()
        files = {file.path: file for file in manifest.files}
        for number, shown in inclusions.items():
            file = self._put(receipts_path(number), shown.to_bytes())
            files[file.path] = file
        self._commit(replace(manifest, files=_sorted(files)))
        return self._begun()

    def close(self) -> None:
        """Let others write."""
        self._unlock()

    def _check_held(self) -> None:
        if not self._unlock.alive:
            raise StoreError(
                "was let go of; somebody else may be writing it now",
                place=str(self.path),
                advice="Make a new Prover on this store to go on.",
            )

    def _begun(self) -> Manifest:
        self._check_held()
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
        with ThreadPoolExecutor(1) as pool:
            with atomic.replacing(self.path / name) as file:
                hashing = _Hashing(file, pool)
                write_checkpoint(checkpoint, hashing)
            return File(name, hashing.size, hashing.digest())

    def _listed(self, name: str) -> File:
        with (self.path / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            return File(name, os.fstat(file.fileno()).st_size, digest)

    def _remove_leftovers(self) -> None:
        """Remove what a killed sealing left behind, and states that no resume will need."""
        for path in list(self._leftovers()):
            path.unlink(missing_ok=True)
        for folder in itertools.chain.from_iterable(map(self.path.glob, _FOLDERS)):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()
        for path in self.state_path.glob("*" + atomic.TEMPORARY):
            path.unlink(missing_ok=True)
        current = self.training_state(len(self.manifest.shards) if self.manifest else 0)
        for path in self.state_path.glob("[0-9]*.safetensors"):
            if path != current and current.exists():
                path.unlink(missing_ok=True)

    def _leftovers(self) -> Iterator[Path]:
        """Files that only a proof has, and that the manifest does not list."""
        listed = {file.path for file in self.manifest.files} if self.manifest else set()
        for path in itertools.chain.from_iterable(
            map(self.path.glob, ("*", "*/*", "evidence/*/*"))
        ):
            name = path.relative_to(self.path).as_posix()
            known = name in listed or name == MANIFEST_FILE
            if not known and _OURS.fullmatch(name) and not path.is_dir():
                self._check_leftover(path)
                yield path
        yield from self._untransferred()

    def _untransferred(self) -> Iterator[Path]:
        """What a killed transfer left behind: all of it, unless the manifest binds it."""
        bound = self.manifest is not None and self.manifest.transfer is not None
        depths = (f"{ANCESTORS_FOLDER}/*/*", f"{ANCESTORS_FOLDER}/*/*/*")
        for path in itertools.chain.from_iterable(
            map(self.path.glob, (f"{TRANSFER_FILE}*", *depths))
        ):
            name = path.relative_to(self.path).as_posix()
            # Somebody may have linked the seller's own proof into place: that is not ours.
            folders = path.relative_to(self.path).parents
            linked = any((self.path / at).is_symlink() for at in folders if at.name)
            loose = not bound or name.endswith(atomic.TEMPORARY)
            if loose and not linked and _BOUGHT.fullmatch(name) and not path.is_dir():
                yield path

    def _check_leftover(self, path: Path) -> None:
        """Refuse to remove what no killed sealing of this manifest can have left behind."""
        number = path.name.partition(".")[0]
        next_shard = len(self.manifest.shards) + 1 if self.manifest else 0
        if number.isdecimal() and int(number) > next_shard:
            raise StoreError(
                f"{path.name} belongs to a later shard than {MANIFEST_FILE} knows",
                place=str(self.path),
                advice=f"Bring the newest {MANIFEST_FILE} back; nothing was removed.",
            )


class _Hashing:
    """Passes bytes on to a file, and hashes them meanwhile, on the one thread of a pool."""

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor) -> None:
        self.size = 0
        self._file, self._pool = file, pool
        self._state = hashlib.sha256()
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, data: bytes | memoryview) -> None:
        self._waiting.append(self._pool.submit(self._state.update, data))
        self._file.write(data)
        self.size += len(data)
        if len(self._waiting) > _UNHASHED:
            self._waiting.popleft().result()

    def digest(self) -> bytes:
        """The digest of all that was passed on."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._state.digest()


def _is_live(manifest: Manifest) -> bool:
    return manifest.enrolment.nonces.kind == "live"


def _sorted(files: dict[str, File]) -> tuple[File, ...]:
    return tuple(files[path] for path in sorted(files))


def _lock(path: Path, proof: Path) -> int:
    """An exclusive lock that the system lets go of when the process ends, however it ends."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise LockedError(
            "another prover is writing this proof",
            place=str(proof),
            advice="Wait for it, close() the other prover, or give this run a store of its own.",
        ) from error
    return handle


def _release(handle: int, owner: int) -> None:
    """Let go of a lock; a forked worker that ends must not let go of its parent's."""
    if os.getpid() == owner:
        # Closing would not do while a worker of a data loader has a copy of the handle.
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
