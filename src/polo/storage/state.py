"""Training state beside a proof: optimizer, schedulers, random generators; without pickle.

A state is a tree of dicts, lists, tensors and plain values, as `state_dict()` gives them. Tensors
go into a safetensors file, the tree into its metadata as JSON.
"""

import json
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save

from polo.errors import StoreError
from polo.storage import atomic
from polo.weights.files import open_plain

_TENSOR, _TUPLE, _MAP, _COUNTER, _FLOAT = "$tensor", "$tuple", "$map", "$counter", "$float"
_UNREADABLE = (
    StoreError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
    struct.error,
    safetensors.SafetensorError,
)


def write_state(path: Path, tree: Any) -> None:
    """Write a state for its owner's eyes only."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_pack(tree, tensors, str(path)), allow_nan=False)
    data = save(tensors, metadata={"tree": text})
    with atomic.replacing(path, mode=0o600) as file:
        file.write(data)


def read_state(path: Path) -> Any:
    """Read what `write_state` wrote."""
    try:
        open_plain(path).close()  # safetensors would wait for ever at a pipe.
        with safetensors.safe_open(path, framework="pt") as file:
            tree = json.loads(file.metadata()["tree"])
            return _unpack(tree, file, set())
    except _UNREADABLE as error:
        raise StoreError(
            f"the saved training state cannot be read: {str(error)[:200]}", place=str(path)
        ) from error


def random_state() -> dict[str, Any]:
    """The state of the generators of torch (all devices), numpy and random."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    kind, keys, *rest = np.random.get_state(legacy=True)
    state["numpy"] = [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest]
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random(state: dict[str, Any]) -> None:
    """Put the generators back into a state."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in state and torch.cuda.is_available():
        for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(saved, device)


def _pack(value: Any, tensors: dict[str, torch.Tensor], place: str) -> Any:
    if isinstance(value, torch.Tensor) and _storable(value):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: name}
    if isinstance(value, dict):
        pairs = [[_pack(k, tensors, place), _pack(v, tensors, place)] for k, v in value.items()]
        return {_COUNTER if isinstance(value, Counter) else _MAP: pairs}
    if isinstance(value, (list, tuple)):
        items = [_pack(item, tensors, place) for item in value]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return {_FLOAT: struct.pack("<d", value).hex()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise StoreError(
        f"a {type(value).__name__} in the training state cannot be saved without pickle",
        place=place,
        advice="Pass only objects whose state_dict() holds tensors and plain values.",
    )


def _storable(tensor: torch.Tensor) -> bool:
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
    return dense and not tensor.is_meta and tensor.dtype not in (torch.complex32, torch.complex128)


def _unpack(value: Any, file: Any, taken: set[str]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, file, taken) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    if kind == _TENSOR:
        # Each is stored once; a short tree must not ask for a large one a thousand times.
        if body in taken:
            raise ValueError(f"the tensor {body} appears twice")
        taken.add(body)
        # A copy: what safetensors returns is a map of the file, which is removed at the next seal
        # and whose alignment shows in the last bits of some sums.
        return file.get_tensor(body).clone()
    if kind == _FLOAT:
        return struct.unpack("<d", bytes.fromhex(body))[0]
    if kind == _TUPLE:
        return tuple(_unpack(item, file, taken) for item in body)
    if kind not in (_MAP, _COUNTER):
        raise ValueError(f"{kind} has no meaning here")
    found = {_unpack(k, file, taken): _unpack(v, file, taken) for k, v in body}
    return Counter(found) if kind == _COUNTER else found
