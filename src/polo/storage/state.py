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

from polo.errors import StoreError
from polo.storage import atomic
from polo.weights import dtypes
from polo.weights.files import encoded_header, open_plain

_TENSOR, _TUPLE, _MAP, _COUNTER, _FLOAT = "$tensor", "$tuple", "$map", "$counter", "$float"
_MOST_HEADER = 100_000_000
"""What safetensors reads, at most."""

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
    """Write a state for its owner's eyes only, one tensor after the other."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(_pack(tree, tensors, str(path)), allow_nan=False)
    # Each begins at a multiple of its type's size.
    order = sorted(range(len(tensors)), key=lambda at: -tensors[at].dtype.itemsize)
    header = _header(text, {str(at): tensors[at] for at in order}, str(path))
    with atomic.replacing(path, mode=0o600) as file:
        file.write(header)
        for at in order:
            row = tensors[at].cpu().contiguous().reshape(-1)
            file.write(row.view(torch.uint8).numpy().data)


def _header(tree: str, tensors: dict[str, torch.Tensor], place: str) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"tree": tree}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        entries[name] = {
            "dtype": dtypes.name_of_torch(tensor.dtype, place=name),
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    header = encoded_header(entries)
    if len(header) > _MOST_HEADER:
        raise StoreError(
            f"{len(header)} bytes of plain values in the training state; {_MOST_HEADER} at most",
            place=place,
            advice="Keep long lists of numbers as tensors.",
        )
    return header


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


def _pack(value: Any, tensors: list[torch.Tensor], place: str) -> Any:
    if isinstance(value, torch.Tensor) and _storable(value):
        tensors.append(value.detach().resolve_conj().resolve_neg())
        return {_TENSOR: str(len(tensors) - 1)}
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
        advice="The optimizer, and what `also` names, need a state of tensors and plain values.",
    )


def _storable(tensor: torch.Tensor) -> bool:
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
    if not dense or tensor.is_meta or tensor.dtype in (torch.complex32, torch.complex128):
        return False
    return dtypes.is_known(tensor.dtype)


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
