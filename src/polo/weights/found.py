"""Opening a found model, whatever shape it comes in.

    with open_found(Path("model.gguf")) as model:
        print(model.description)
        model.read("blk.0.attn_q.weight", 0, 256)

A file says by its first bytes what it is. A folder is searched as Hugging Face's libraries do.
Nothing is ever unpickled. Links are followed: the user chose the path.
"""

import os
from pathlib import Path

from polo.errors import FormatError, PoloError, StoreError
from polo.weights.formats import PICKLE_SUFFIXES, format_of, pickle_refusal, real_path
from polo.weights.found_model import FoundModel, FoundTensor
from polo.weights.gguf_file import open_gguf
from polo.weights.sharded import open_safetensors, open_sharded

__all__ = ["FoundModel", "FoundTensor", "open_found"]

ACCEPTED = (
    "Give a safetensors file, a GGUF file, or a folder with model.safetensors or "
    "model.safetensors.index.json and its shards."
)
_STEMS = ("model", "diffusion_pytorch_model", "adapter_model")
_MAX_ENTRIES = 100_000
_SHOWN = 5


def open_found(path: Path) -> FoundModel:
    """Open a found model: a safetensors or GGUF file, or a folder of safetensors.

    Raises:
        StoreError: There is no model at this path.
        FormatError: It is no model, or a broken one.
        WeightsError: It is pickled; the advice has the command that converts it.
        MissingError: A package is needed to read it.
    """
    real = real_path(path)
    if not os.path.lexists(real):
        raise StoreError("there is nothing here", place=str(path), advice=ACCEPTED)
    return _open_folder(path) if real.is_dir() else _open_file(path)


def _open_file(path: Path) -> FoundModel:
    form = format_of(path)
    if form == "safetensors":
        return open_safetensors(path)
    if form == "GGUF":
        return open_gguf(real_path(path))
    if form == "pickle":
        raise pickle_refusal(path)
    raise FormatError("is no model in a format that is read", place=str(path), advice=ACCEPTED)


def _open_folder(folder: Path) -> FoundModel:
    names = _names(folder)
    # The names of a proof's files; reading them is the business of layers above.
    if {"manifest.json", "layout.json"} <= set(names):
        raise StoreError(
            "is a proof, not a model",
            place=str(folder),
            advice="Give the model that was found. The model that a proof ends in is the last "
            "file in its folder checkpoints.",
        )
    for stem in _STEMS:
        if f"{stem}.safetensors" in names:
            return _open_file(folder / f"{stem}.safetensors")
        if f"{stem}.safetensors.index.json" in names:
            return open_sharded(folder / f"{stem}.safetensors.index.json")
    models = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    if len(models) == 1:
        return _open_file(folder / models[0])
    raise _no_model(folder, names, models)


def _names(folder: Path) -> list[str]:
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MAX_ENTRIES:
                    raise StoreError("the folder holds too many files", place=str(folder))
    except OSError as error:
        raise StoreError(f"cannot be listed: {error.strerror}", place=str(folder)) from error
    return sorted(names)


def _no_model(folder: Path, names: list[str], models: list[str]) -> PoloError:
    """Why there is no model in a folder, as helpful as its files allow."""
    place = str(folder)
    if len(models) > 1:
        return StoreError(
            f"holds several models, or shards without their index: {_some(models)}",
            place=place,
            advice="Give one of the files, or put model.safetensors.index.json beside the shards.",
        )
    pickled = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if weights := [name for name in pickled if name.startswith("pytorch_model")] or pickled:
        return pickle_refusal(folder, *weights)
    return StoreError(_what_instead(names), place=place, advice=ACCEPTED)


def _what_instead(names: list[str]) -> str:
    if not names:
        return "the folder is empty"
    if {"snapshots", "blobs"} <= set(names):
        return "is the root of a model cache; the model is in a folder below its snapshots"
    if "model_index.json" in names:
        return "is a pipeline of several models; each is in a folder of its own"
    if any(name.startswith("tokenizer") for name in names):
        return "holds a tokenizer and no weights"
    return f"holds no model: {_some(names)}"


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name[:80]) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
