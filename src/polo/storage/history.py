"""The stored checkpoints of a proof, newest to oldest, deltas undone on the way."""

import contextlib
import tempfile
from collections.abc import Container, Iterator
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
    folder: ProofFolder,
    manifest: Manifest,
    layout: Layout,
    *,
    sound: Container[str] | None = None,
) -> Iterator[tuple[int, FileCheckpoint]]:
    """Every stored checkpoint, newest first; each is closed when the next one is asked for.

    A delta leads from the next newer stored checkpoint, so at most two of them are unpacked here at
    a time, in a temporary folder.

    Args:
        folder: The proof.
        manifest: Its manifest.
        layout: Its layout.
        sound: Listed files that may be read, each asked for when it is its turn; of others the
            deltas that lead from them are left out, too. None for all.
    """
    listed = {file.path for file in manifest.files}
    sound = listed if sound is None else sound
    with contextlib.ExitStack() as stack:
        newer: FileCheckpoint | None = None
        temporary: Path | None = None
        newest = True
        try:
            for number in stored(manifest):
                whole = checkpoint_path(number)
                packed = checkpoint_path(number, delta=True)
                opened = None
                if whole in listed and whole in sound:
                    opened = folder.checkpoint(number, layout)
                elif whole not in listed and packed in sound and newest:
                    raise FormatError("there is no newer checkpoint it leads from", place=packed)
                elif whole not in listed and packed in sound and newer:
                    temporary = temporary or Path(stack.enter_context(_folder()))
                    unpacked = temporary / "unpacked.safetensors"
                    with unpacked.open("wb") as file:
                        delta.apply_delta(folder.file(packed), newer, file.write, place=packed)
                    opened = FileCheckpoint.canonical(unpacked, layout)
                    unpacked.unlink()  # It lives on until it is closed.
                if newer:
                    newer.close()
                newer, newest = opened, False
                if opened:
                    yield number, opened
        finally:
            if newer:
                newer.close()


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="polo-")
