"""A found model in several safetensors files with an index.

An input is JSON: the `index`, and the `shards` by name, each as its header.
"""

import json
from collections.abc import Iterator
from typing import Any

from fuzz import found_models, mutation, promises, safetensors_files, sandbox
from fuzz.target import Target

INDEX = "model.safetensors.index.json"


def _fits(name: object) -> bool:
    """Whether a name out of an index can be a file's."""
    if not isinstance(name, str) or "/" in name or "\0" in name:
        return False
    return 0 < len(name.encode(errors="replace")) < 200


def check(data: bytes) -> None:
    """See `found_models`; and no file outside the folder is read as a shard."""
    try:
        value = json.loads(data)
        index, shards = value["index"], dict(value["shards"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    folder = sandbox.folder("sharded") / "model"
    folder.mkdir()
    # What a shard's name must never lead to.
    shard = safetensors_files.pack(_header("outside"), bytes(16))
    (folder.parent / "outside.safetensors").write_bytes(shard)
    (folder / INDEX).write_bytes(mutation.spell(index))
    size = len(data)
    for name, header in list(shards.items())[:8]:
        if _fits(name):
            content = safetensors_files.pack(header, bytes(16))
            (folder / name.encode(errors="replace").decode()).write_bytes(content)
            size += 16
    with promises.confined():
        found_models.check(folder, size)


def _header(name: str) -> dict[str, Any]:
    return {name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


def indices() -> Iterator[bytes]:
    """Two shards, and indices that lead astray."""
    names = {f"model-0000{at}-of-00002.safetensors": _header(f"{at}.weight") for at in (1, 2)}
    listed = {next(iter(header)): name for name, header in names.items()}
    for change in ({}, {"outside": "../outside.safetensors"}, {"1.weight": "model.bin"}):
        index = {"metadata": {"total_size": 32}, "weight_map": {**listed, **change}}
        yield mutation.spell({"index": index, "shards": names})
    for shard in ({}, {"model.safetensors": _header("a")}, {"a.safetensors": _header("a")}):
        yield mutation.spell({"index": {}, "shards": shard})


TARGET = Target(check, indices, mutation.document)
