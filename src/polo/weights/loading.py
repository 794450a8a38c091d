"""Loading a checkpoint into a live model. torch."""

import torch

from polo.errors import WeightsError
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint, checkpoint_of


@torch.no_grad()
def load_into(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's values into a model of the same layout."""
    live = checkpoint_of(model)
    if live.layout != checkpoint.layout:
        raise WeightsError("the model and the checkpoint have different layouts")
    copy_all([live.tensor(at) for at in range(len(live.layout.tensors))], checkpoint)


@torch.no_grad()
def copy_all(targets: list[torch.Tensor], checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's values into tensors of the same types and shapes, in its order."""
    there = next((target.device for target in targets if target.is_cuda), None)
    flat = _uploaded(checkpoint, there) if there else None
    sources = [
        _values(checkpoint, at)
        if flat is None or not target.is_cuda
        else _part(flat, checkpoint, at)
        for at, target in enumerate(targets)
    ]
    # One call: each gives the interpreter's lock away, and may have to wait to get it back.
    torch._foreach_copy_(targets, sources)


def _uploaded(checkpoint: Checkpoint, device: torch.device) -> torch.Tensor | None:
    """All bytes of a checkpoint on a device, in one piece; None if they are not held so."""
    if not isinstance(checkpoint, HeldCheckpoint):
        return None
    return torch.frombuffer(_writable(checkpoint.data), dtype=torch.uint8).to(device)


def _part(flat: torch.Tensor, checkpoint: Checkpoint, at: int) -> torch.Tensor:
    tensor, start = checkpoint.layout.tensors[at], checkpoint.layout.offsets[at]
    dtype = dtypes.torch_dtype(tensor.dtype)
    part = flat[start : start + tensor.size]
    # A view begins at a multiple of its type's size.
    return (part.clone() if start % dtype.itemsize else part).view(dtype).view(tensor.shape)


def _values(checkpoint: Checkpoint, at: int) -> torch.Tensor:
    tensor = checkpoint.layout.tensors[at]
    dtype = dtypes.torch_dtype(tensor.dtype)
    if not tensor.elements:
        return torch.empty(tensor.shape, dtype=dtype)
    data = _writable(checkpoint.read(at, 0, tensor.size))
    return torch.frombuffer(data, dtype=dtype).reshape(tensor.shape)


def _writable(data: bytes | memoryview) -> bytearray | memoryview:
    """Bytes as torch takes them: in memory that may be written to, copied only if need be."""
    if isinstance(data, memoryview) and not data.readonly:
        return data
    return bytearray(data)
