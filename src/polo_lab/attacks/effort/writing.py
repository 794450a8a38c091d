"""Writing a proof folder without the product's writer: files, manifest, signature."""

import hashlib
from dataclasses import replace
from pathlib import Path

from polo.protocol import signing
from polo.protocol.commitment import Opening
from polo.protocol.layout import Layout
from polo.protocol.records import File, Manifest, Nonce, Retention, Shard, Start
from polo.storage import openings
from polo.storage.folder import (
    LAYOUT_FILE,
    MANIFEST_FILE,
    checkpoint_path,
    evidence_path,
    nonce_path,
    opening_path,
)
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import write_checkpoint
from polo_lab.effort.training import Enrolled


class Writing:
    """A proof folder that grows shard by shard and is signed at the end.

    Args:
        folder: The folder, which does not exist yet.
        who: Whose proof it is.
        layout: The model's layout.
    """

    def __init__(self, folder: Path, who: Enrolled, layout: Layout) -> None:
        self.folder = folder
        self._who = who
        self._files: list[File] = []
        self._shards: list[Shard] = []
        self._start: Start | None = None
        self._put(LAYOUT_FILE, layout.to_bytes())

    @property
    def last_root(self) -> bytes:
        """Root of the newest checkpoint."""
        assert self._start is not None
        return self._shards[-1].root if self._shards else self._start.root

    def begin(self, start: Start, checkpoint: Checkpoint) -> None:
        """Write W_0."""
        self._start = start
        self._put_checkpoint(0, checkpoint)

    def shard(
        self,
        shard: Shard,
        checkpoint: Checkpoint,
        opening: Opening,
        nonce: Nonce,
        record: bytes | None,
    ) -> None:
        """Write a shard and, where terms ask for one, the record of its training."""
        self._put_checkpoint(shard.shard, checkpoint)
        self._put(opening_path(shard.shard), openings.encode(opening))
        self._put(nonce_path(shard.shard), nonce.to_bytes())
        if record is not None:
            self._put(evidence_path("replay", shard.shard), record)
        self._shards.append(shard)

    def finish(self) -> Path:
        """Sign everything."""
        assert self._start is not None
        manifest = Manifest(
            self._who.enrolment.record,
            self._start,
            tuple(self._shards),
            Retention("all", 1, False),
            tuple(sorted(self._files, key=lambda file: file.path)),
            finished=True,
            outside=0,
            transfer=None,
        )
        sign_into(self.folder, manifest, self._who)
        return self.folder

    def _put_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        parts: list[bytes] = []
        write_checkpoint(checkpoint, lambda part: parts.append(bytes(part)))
        self._put(checkpoint_path(number), b"".join(parts))

    def _put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._files.append(listed(name, data))


def listed(name: str, data: bytes) -> File:
    """A file as a manifest lists it."""
    return File(name, len(data), hashlib.sha256(data).digest())


def sign_into(folder: Path, manifest: Manifest, who: Enrolled) -> None:
    """Sign a manifest and put it into a proof folder."""
    signed = signing.sign(replace(manifest, signature=bytes(64)), who.key)
    (folder / MANIFEST_FILE).write_bytes(signed.to_bytes())
