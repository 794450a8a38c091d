"""The stored checkpoints of a proof, newest to oldest, deltas undone on the way."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from polo.errors import FormatError
from polo.protocol.layout import Layout
from polo.protocol.records import Manifest
from polo.storage import delta
from polo.storage.folder import ProofFolder, checkpoint_path
from polo.weights.files import FileCheckpoint


def stored(manifest: Manifest) -> list[int]:
    """Numbers of the shards whose checkpoint is in the proof, newest first; 0 is the start."""
    listed = {file.path for file in manifest.files}
    return [
        number
        for number in range(len(manifest.shards), -1, -1)
        if {checkpoint_path(number), checkpoint_path(number, delta=True)} & listed
    ]


def checkpoints(
    folder: ProofFolder, manifest: Manifest, layout: Layout
) -> Iterator[tuple[int, FileCheckpoint]]:
    """Every stored checkpoint, newest first; each is closed when the next one is asked for.

    A delta leads from the next newer stored checkpoint, so at most two of them are unpacked at a
    time, in a temporary folder.
    """
    listed = {file.path for file in manifest.files}
    with tempfile.TemporaryDirectory(prefix="polo-") as temporary:
        newer: FileCheckpoint | None = None
        unpacked: Path | None = None
        for number in stored(manifest):
            fresh: Path | None = None
            if checkpoint_path(number) in listed:
                checkpoint = folder.checkpoint(number, layout)
            else:
                fresh = Path(temporary) / f"{number:06d}.safetensors"
                checkpoint = _unpack(folder, number, newer, fresh, layout)
            if newer:
                newer.close()
            if unpacked:
                unpacked.unlink()
            newer, unpacked = checkpoint, fresh
            yield number, checkpoint
        if newer:
            newer.close()


def _unpack(
    folder: ProofFolder, number: int, newer: FileCheckpoint | None, out: Path, layout: Layout
) -> FileCheckpoint:
    name = checkpoint_path(number, delta=True)
    if newer is None:
        raise FormatError("there is no newer checkpoint that it leads from", place=name)
    with out.open("wb") as file:
        delta.apply_delta(folder.path / name, newer, file.write, place=name)
    return FileCheckpoint.canonical(out, layout)
