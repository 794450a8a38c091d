"""A checkpoint: a layout and the bytes behind it, wherever they are.

`Checkpoint` is the one interface that hashing, writing, cutting openings and reading marks
use. Here is the one for weights in memory (a module's state dict, on any device);
`polo.weights.files` has the one for files.
"""

import copy
import itertools
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from polo.errors import WeightsError
from polo.protocol.layout import CHUNK_BYTES, DTYPE_BYTES, Layout, Tensor, Tie
from polo.weights import dtypes
from polo.weights.sharing import SharedMemory

if TYPE_CHECKING:
    import torch

if sys.byteorder != "little":
    raise ImportError("PoLO reads the memory of tensors, which must be little-endian")

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


class Checkpoint(Protocol):
    """Weights that can be read piece by piece."""

    @property
    def layout(self) -> Layout:
        """Names, types and shapes."""

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""


def unwrapped(name: str) -> str:
    """A path without the components that wrappers put into it.

    >>> unwrapped("blocks.0._checkpoint_wrapped_module.fc.weight")
    'blocks.0.fc.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def canonical_names(names: list[str]) -> dict[str, str]:
    """Each name without what wrappers put into it (compile, DDP, FSDP, opacus, checkpointing).

    >>> canonical_names(["module._orig_mod.fc.weight"])
    {'module._orig_mod.fc.weight': 'fc.weight'}
    """
    bare = {name: unwrapped(name) for name in names}
    while prefix := _common_wrapper(bare.values()):
        bare = {name: short.removeprefix(prefix) for name, short in bare.items()}
    seen: dict[str, str] = {}
    for name, short in bare.items():
        if other := seen.get(short):
            raise WeightsError(f"{other!r} and {name!r} both mean this tensor", place=short)
        seen[short] = name
    return bare


def _common_wrapper(names: Collection[str]) -> str:
    """What a wrapper put in front of all names; empty if there is none."""
    for prefix in ("module.", "_module."):
        if names and all(name.startswith(prefix) for name in names):
            return prefix
    return ""


class MemoryCheckpoint:
    """Weights held as torch tensors or numpy arrays, on any device.

    Nothing is copied at once: pieces are brought to the CPU and into row-major order as they
    are read. Tensors that share memory, shape and strides are tied: they appear once.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        names = canonical_names(list(state))
        found = sorted((short.encode(), short, state[name]) for name, short in names.items())
        tensors: list[Tensor] = []
        ties: list[Tie] = []
        self._values: list[Any] = []
        first: dict[Any, str] = {}
        for _, name, value in found:
            dtype = _dtype(value, name)
            mark = _memory(value)
            if mark is not None and mark in first:
                ties.append(Tie(name, first[mark]))
                continue
            if mark is not None:
                first[mark] = name
            tensors.append(Tensor(name, dtype, tuple(int(n) for n in value.shape)))
            self._values.append(value)
        self._layout = Layout(CHUNK_BYTES, tuple(tensors), tuple(ties))
        self._layout.check()

    @property
    def layout(self) -> Layout:
        """Names, types and shapes."""
        return self._layout

    def read(self, tensor: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        value = self.tensor(tensor)
        if isinstance(value, np.ndarray):
            return _numpy_bytes(value, start, stop)
        return _torch_bytes(value, start, stop)

    def tensor(self, tensor: int) -> Any:
        """The tensor itself, as it is in memory."""
        return self._values[tensor]

    def on_host(self) -> "MemoryCheckpoint":
        """The same, with what is on other devices brought to the CPU as a whole: it is read often.

        Piece by piece, and in another order than it lies there, would take much longer.
        """
        found = copy.copy(self)
        found._values = [
            value
            if isinstance(value, np.ndarray) or value.device.type == "cpu"
            else value.detach().contiguous().cpu()
            for value in self._values
        ]
        return found


def places_of(state: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names of a state dict's tensors and the memory that each one is.

    While somebody holds the tensors, equal places are the same tensors.
    """
    return [(name, _memory(value)) for name, value in state.items()]


def checkpoint_of(model: "torch.nn.Module | Mapping[str, Any]") -> MemoryCheckpoint:
    """The checkpoint of a module or of a state dict, as it is in memory now."""
    state = model if isinstance(model, Mapping) else model.state_dict()
    return MemoryCheckpoint(state)


def _memory(value: Any) -> Any:
    """What two tensors share when they are one; None for tensors without memory."""
    if isinstance(value, np.ndarray):
        if value.size == 0:
            return None
        return value.__array_interface__["data"][0], value.dtype.str, value.shape, value.strides
    if value.numel() == 0:
        return None
    # Lazy conjugates and negatives share memory with what they come from, and differ.
    lazy = value.is_conj(), value.is_neg()
    return value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride(), lazy


def _dtype(value: Any, name: str) -> str:
    if isinstance(value, np.ndarray):
        return dtypes.name_of_numpy(value.dtype.newbyteorder("="), place=name)
    if not hasattr(value, "dtype") or not hasattr(value, "data_ptr"):
        raise WeightsError(
            f"a {type(value).__name__} is no tensor",
            place=name,
            advice="Keep extra state out of the state dict (see get_extra_state).",
        )
    if type(value).__name__.startswith("Uninitialized"):
        raise WeightsError(
            "has no shape yet",
            place=name,
            advice="A lazy layer gets its shape by a first batch: let build_model() pass one.",
        )
    if "DTensor" in (type(value).__name__, type(getattr(value, "data", None)).__name__):
        raise WeightsError(
            "is spread over processes (DTensor); this release proves training in one",
            place=name,
            advice="Train with whole weights, on one rank.",
        )
    odd = value.is_quantized or value.is_meta or value.is_nested
    if odd or str(value.layout) != "torch.strided":
        raise WeightsError(
            "only dense tensors with values have canonical bytes",
            place=name,
            advice="Where an optimizer keeps sparse momentum, take the momentum out or use dense "
            "gradients: nn.Embedding(sparse=False).",
        )
    return dtypes.name_of_torch(value.dtype, place=name)


def _numpy_bytes(value: np.ndarray[Any, Any], start: int, stop: int) -> bytes | memoryview:
    size = value.dtype.itemsize
    little = value.dtype.newbyteorder("<")
    if value.flags.c_contiguous and value.dtype == little:
        return value.reshape(-1).view(np.uint8)[start:stop].data
    return value.flat[start // size : -(-stop // size)].astype(little).tobytes()


def _torch_bytes(value: "torch.Tensor", start: int, stop: int) -> memoryview:
    import torch

    value = value.detach().resolve_conj().resolve_neg()
    size = DTYPE_BYTES[dtypes.name_of_torch(value.dtype, place="tensor")]
    if value.is_contiguous():
        flat = value.view(-1).view(torch.uint8) if value.dtype != torch.uint8 else value.view(-1)
        piece = flat[start:stop]
    else:
        if value.is_complex():
            value, size = torch.view_as_real(value), size // 2
        # Same-sized integers can be viewed and joined whatever the type.
        integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        found = _row_major(value.view(integers), start // size, -(-stop // size))
        piece = found.contiguous().view(torch.uint8)
    return piece.cpu().numpy().data


def _row_major(value: "torch.Tensor", start: int, stop: int) -> "torch.Tensor":
    """Elements of a tensor of any strides in row-major order; no others are copied."""
    import torch

    if value.is_contiguous():
        return value.view(-1)[start:stop]
    inner = value[0].numel()
    parts = []
    while start < stop:
        row, at = divmod(start, inner)
        rows = 0 if at else (stop - start) // inner
        end = start + rows * inner if rows else min(stop, (row + 1) * inner)
        if rows:
            parts.append(value[row : row + rows].reshape(-1))
        else:
            parts.append(_row_major(value[row], at, at + end - start))
        start = end
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class HeldCheckpoint:
    """A checkpoint whose bytes are in memory, tensor after tensor without gaps.

    Args:
        layout: The layout.
        data: The bytes.

    Attributes:
        layout: The layout.
        data: The bytes.
    """

    def __init__(self, layout: Layout, data: bytes | bytearray | memoryview) -> None:
        self.layout = layout
        self.data = memoryview(data)

    @classmethod
    def copy_of(cls, checkpoint: Checkpoint) -> "HeldCheckpoint":
        """A copy of a checkpoint that may change."""
        layout = checkpoint.layout
        data = bytearray(layout.size)
        for at, (tensor, start) in enumerate(zip(layout.tensors, layout.offsets, strict=True)):
            data[start : start + tensor.size] = checkpoint.read(at, 0, tensor.size)
        return cls(layout, data)

    @property
    def handle(self) -> int | None:
        """The descriptor by which another process maps the bytes; None if it cannot."""
        memory = self.data.obj
        if isinstance(memory, SharedMemory) and len(memory) == len(self.data):
            return memory.handle
        return None

    def read(self, tensor: int, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop` of a tensor's canonical bytes."""
        at = self.layout.offsets[tensor]
        return self.data[at + start : at + stop]

    def not_finite(self) -> str:
        """The name of the first tensor with a value that is no finite number; empty if none has."""
        for kind, run in itertools.groupby(
            zip(self.layout.tensors, self.layout.offsets, strict=True), lambda item: item[0].dtype
        ):
            # Neighbours of one type at once: most tensors of a network are small.
            members = list(run)
            start, (last, at) = members[0][1], members[-1]
            if not dtypes.is_finite(self.data[start : at + last.size], kind):
                for tensor, at in members:
                    if not dtypes.is_finite(self.data[at : at + tensor.size], kind):
                        return tensor.name
        return ""
