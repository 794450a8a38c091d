"""Loading the model that a proof ends in, or a file of it, into a live model."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from polo.errors import FormatError, StoreError, WeightsError
from polo.protocol.layout import Layout
from polo.storage.bundle import opened
from polo.storage.folder import LAYOUT_FILE, ProofFolder, checkpoint_path
from polo.weights.checkpoint import Checkpoint, checkpoint_of
from polo.weights.files import FileCheckpoint
from polo.weights.formats import format_of, pickle_refusal, real_path
from polo.weights.hashing import commit

if TYPE_CHECKING:
    import torch

_PIECE = 2**20


def load_weights(model: "torch.nn.Module", source: str | Path) -> bytes:
    """Load the model that a proof ends in, to the bit.

        polo.load_weights(model, "alice-proof/")

    Args:
        model: A model of the same tensors; its values are replaced.
        source: A proof or a bundle that holds the last checkpoint, or a safetensors file.

    Returns:
        The root of what was loaded.
    """
    from polo.weights.loading import load_into

    layout = checkpoint_of(model).layout
    with last_checkpoint(source) as found:
        fitting = Fitted(found, layout, str(source))
        root = commit(fitting).root
        load_into(model, fitting)
    return root


@contextlib.contextmanager
def last_checkpoint(source: str | Path) -> Iterator[FileCheckpoint]:
    """The last checkpoint of a proof or a bundle, or what a safetensors file holds."""
    path = Path(source)
    kind = format_of(path) if path.is_file() else ""
    if kind == "pickle":
        raise pickle_refusal(path)
    if kind == "safetensors":
        # The user chose this path, so a link, as in a model cache, is followed.
        with FileCheckpoint.any(real_path(path)) as checkpoint:
            yield checkpoint
        return
    with opened(path) as folder, _of_proof(ProofFolder(folder), str(source)) as checkpoint:
        yield checkpoint


def _of_proof(folder: ProofFolder, place: str) -> FileCheckpoint:
    manifest, layout = folder.manifest(), folder.layout()
    if layout.digest != manifest.terms.layout:
        raise FormatError("it is not the layout that the terms name", place=LAYOUT_FILE)
    last = len(manifest.shards)
    name = checkpoint_path(last)
    if not (folder.path / name).exists():
        raise StoreError(
            "holds no weights",
            place=place,
            advice="Ask its owner for the model file, or for the whole proof.",
        )
    checkpoint = folder.checkpoint(last, layout)
    try:
        if commit(checkpoint).root != manifest.last_root:
            raise WeightsError("the weights are not those the proof ends in", place=name)
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


class Fitted:
    """A file's tensors under the names of a model, whose ties a file may spell out.

    Args:
        file: The file.
        layout: The model's layout.
        place: What to call the file in errors.
    """

    def __init__(self, file: Checkpoint, layout: Layout, place: str) -> None:
        self._file = file
        self._layout = layout
        there = file.layout.index
        names: dict[str, list[str]] = {tensor.name: [tensor.name] for tensor in layout.tensors}
        for tie in layout.ties:
            names[tie.name].append(tie.alias)
        known = {name for same in names.values() for name in same}
        if extra := sorted(set(there) - known):
            raise WeightsError("the model has no such tensor", place=f"{place}: {extra[0]}")
        self._at: list[int] = []
        for tensor in layout.tensors:
            where = f"{place}: {tensor.name}"
            found = [there[name] for name in names[tensor.name] if name in there]
            if not found:
                raise WeightsError("this tensor of the model is not there", place=where)
            for at in found:
                other = file.layout.tensors[at]
                if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
                    raise WeightsError(
                        f"{other.dtype} {list(other.shape)}; the model has {tensor.dtype} "
                        f"{list(tensor.shape)}",
                        place=where,
                        advice="Take the model as it was sealed, not one that was converted.",
                    )
                if not self._equal(at, found[0], tensor.size):
                    raise WeightsError("tensors that the model ties differ", place=where)
            self._at.append(found[0])

    @property
    def layout(self) -> Layout:
        """Names, types and shapes."""
        return self._layout

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        return self._file.read(self._at[tensor], start, stop)

    def _equal(self, one: int, other: int, size: int) -> bool:
        return one == other or all(
            bytes(self._file.read(one, at, min(at + _PIECE, size)))
            == bytes(self._file.read(other, at, min(at + _PIECE, size)))
            for at in range(0, size, _PIECE)
        )
