"""Loading a checkpoint into a live model. torch."""

import torch

from polo.errors import WeightsError
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, checkpoint_of


@torch.no_grad()
def load_into(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's values into a model of the same layout, tensor by tensor."""
    live = checkpoint_of(model)
    if live.layout != checkpoint.layout:
        raise WeightsError("the model and the checkpoint have different layouts")
    for at, tensor in enumerate(live.layout.tensors):
        if tensor.elements:
            data = writable(checkpoint.read(at, 0, tensor.size))
            found = torch.frombuffer(data, dtype=dtypes.torch_dtype(tensor.dtype))
            live.tensor(at).copy_(found.reshape(tensor.shape))


def writable(data: bytes | memoryview) -> bytearray | memoryview:
    """Bytes as torch takes them: in memory that may be written to, copied only if need be."""
    if isinstance(data, memoryview) and not data.readonly:
        return data
    return bytearray(data)
