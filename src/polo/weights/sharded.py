"""Models as safetensors: one file, or several with an index, as Hugging Face writes them.

The index is as hostile as the rest. A shard's name must be the plain name of a file in the
index's folder. Where that file is a link it is followed: a model cache is made of links, and
it is the user who chose the folder.
"""

import contextlib
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path

from polo.errors import FormatError, LimitError, StoreError
from polo.weights.files import MAX_HEADER, FileCheckpoint, open_plain, parse_object
from polo.weights.formats import format_of, pickle_refusal, real_path
from polo.weights.found_model import FoundModel, describe
from polo.weights.quantised import sources_of
from polo.weights.stored import Stored

_MAX_SHARDS = 512
_SHARD = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._-]{0,240}\.safetensors")


def open_safetensors(path: Path) -> FoundModel:
    """Open a model that is one safetensors file."""
    return _open([path], {}, "safetensors")


def open_sharded(index: Path) -> FoundModel:
    """Open a model that is a folder of safetensors files with an index.

    Args:
        index: The index, such as `model.safetensors.index.json`.
    """
    listed = _read_index(index)
    shards = sorted(set(listed.values()))
    if len(shards) > _MAX_SHARDS:
        raise LimitError(f"{len(shards)} shards; at most {_MAX_SHARDS}", place=str(index))
    paths = [index.parent / shard for shard in shards]
    for path in paths:
        _check_shard(path, index)
    form = f"safetensors in {len(shards)} shard{'' if len(shards) == 1 else 's'}"
    return _open(paths, listed, form)


def _open(paths: list[Path], listed: Mapping[str, str], form: str) -> FoundModel:
    with contextlib.ExitStack() as files:
        stored: dict[str, Stored] = {}
        homes: dict[str, str] = {}
        size = 0
        for path in paths:
            shard = files.enter_context(FileCheckpoint.any(real_path(path)))
            for at, tensor in enumerate(shard.layout.tensors):
                if home := homes.get(tensor.name):
                    raise FormatError(f"{home} has this tensor too", place=f"{path}: {tensor.name}")
                homes[tensor.name] = path.name
                stored[tensor.name] = Stored(tensor, functools.partial(shard.read, at))
            size += shard.layout.size
        for name, home in listed.items():
            if homes.get(name) != home:
                raise FormatError(f"the tensor {name[:80]!r} is not in this shard", place=home)
        sources = list(sources_of(stored))
        return FoundModel(sources, describe(form, len(sources), size), files)


def _check_shard(path: Path, index: Path) -> None:
    real = real_path(path)
    if not os.path.exists(real):
        raise StoreError(
            f"the shard {path.name} is missing",
            place=str(index.parent),
            advice=f"{index.name} lists it: fetch all files of the model.",
        )
    if format_of(path) == "pickle":
        raise pickle_refusal(path)


def _read_index(index: Path) -> dict[str, str]:
    place = str(index)
    with open_plain(real_path(index)) as file:
        text = file.read(MAX_HEADER + 1)
    if len(text) > MAX_HEADER:
        raise LimitError(f"an index of more than {MAX_HEADER} bytes", place=place)
    listed = parse_object(text, "the index", place).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise FormatError("the index has no weight_map", place=place)
    for shard in listed.values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise FormatError(f"{str(shard)[:80]!r} is no plain name of a shard", place=place)
    return listed
