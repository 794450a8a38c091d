"""Loading a checkpoint into a live model. torch."""

import torch

from polo.errors import WeightsError
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint, checkpoint_of

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


class NotLoadedError(WeightsError):
    """A model that does not have the values that were loaded into it."""


@torch.no_grad()
def load_into(model: torch.nn.Module, checkpoint: Checkpoint, *, check: bool = False) -> None:
    """Copy a checkpoint's values into a model of the same layout.

    Args:
        model: The model.
        checkpoint: The checkpoint.
        check: Whether to look if the model has them then. It has not if its state dict hands out
            copies, or if two of its tensors share memory and the checkpoint's differ.

    Raises:
        NotLoadedError: It has not.
    """
    live = checkpoint_of(model)
    if live.layout != checkpoint.layout:
        raise WeightsError("the model and the checkpoint have different layouts")
    sources = copy_all([live.tensor(at) for at in range(len(live.layout.tensors))], checkpoint)
    if check:
        now = checkpoint_of(model)
        if not _same([now.tensor(at) for at in range(len(sources))], sources):
            raise NotLoadedError("the model does not hold what was loaded into it")


@torch.no_grad()
def copy_all(targets: list[torch.Tensor], checkpoint: Checkpoint) -> list[torch.Tensor]:
    """Copy a checkpoint's values into tensors of the same types and shapes, in its order.

    Returns:
        The values.
    """
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
    return sources


def _same(values: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether tensors are the same to the bit."""
    pairs = [(_bits(one), _bits(other)) for one, other in zip(values, others, strict=True)]
    for device, dtype in {(one.device, one.dtype) for one, _ in pairs if one.is_cuda}:
        # All at once: on a GPU each comparison would be waited for.
        there = [(a, b) for a, b in pairs if (a.device, a.dtype) == (device, dtype)]
        pairs = [(a, b) for a, b in pairs if (a.device, a.dtype) != (device, dtype)]
        pairs.append(
            (torch.cat([a for a, _ in there]), torch.cat([b.to(device) for _, b in there]))
        )
    return all(torch.equal(one, other) for one, other in pairs)


def _bits(value: torch.Tensor) -> torch.Tensor:
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(_INTEGERS[value.dtype.itemsize])


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
        return torch.empty(tensor.shape, dtype=dtype, device="cpu")
    data = _writable(checkpoint.read(at, 0, tensor.size))
    if checkpoint.layout.offsets[at] % dtype.itemsize:
        # In memory it begins where the one before ends; kernels want a multiple of its size.
        data = bytearray(data)
    return torch.frombuffer(data, dtype=dtype).reshape(tensor.shape)


def _writable(data: bytes | memoryview) -> bytearray | memoryview:
    """Bytes as torch takes them: in memory that may be written to, copied only if need be."""
    if isinstance(data, memoryview) and not data.readonly:
        return data
    return bytearray(data)
