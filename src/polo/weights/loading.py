"""Loading a checkpoint into a live model. torch."""

import torch

from polo.errors import WeightsError
from polo.protocol.layout import Layout
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, HeldCheckpoint, checkpoint_of, places_of

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


class NotLoadedError(WeightsError):
    """A model that does not have the values that were loaded into it."""


class Loader:
    """Loads one checkpoint after another into a model.

    What takes longest comes first and needs no lock of the interpreter: whoever works on another
    thread meanwhile hardly notices.

    Args:
        model: The model.
        staged: Whether bytes go to a GPU by way of pinned memory, which is kept for the next time.
            From other memory the driver copies them itself, piece by piece, on this thread.
    """

    def __init__(self, model: torch.nn.Module, *, staged: bool = False) -> None:
        self.model = model
        self._staged = staged
        self._stage: torch.Tensor | None = None
        self._look()

    @property
    def layout(self) -> Layout:
        """The model's layout, as it is now."""
        if not self._is_current():
            self._look()
        return self._layout

    @torch.no_grad()
    def load(self, checkpoint: Checkpoint, *, check: bool = False) -> None:
        """Copy a checkpoint's values into the model, which must be of the same layout.

        Args:
            checkpoint: The checkpoint.
            check: Whether to look if the model has them then. It has not if its state dict hands
                out copies, or if two of its tensors share memory and the checkpoint's differ.

        Raises:
            NotLoadedError: It has not.
        """
        flat = self._uploaded(checkpoint)
        if self.layout != checkpoint.layout:
            raise WeightsError("the model and the checkpoint have different layouts")
        sources = _sources(self._targets, checkpoint, flat)
        # One call: each gives the interpreter's lock away, and may have to wait to get it back.
        torch._foreach_copy_(self._targets, sources)
        if check and not (self._is_current() and self._holds(sources, flat)):
            raise NotLoadedError("the model does not hold what was loaded into it")

    def _look(self) -> None:
        """Find the model's tensors, which others may have put in the place of earlier ones."""
        state = self.model.state_dict()
        live = checkpoint_of(state)
        self._places, self._layout = places_of(state), live.layout
        self._targets = [live.tensor(at) for at in range(len(live.layout.tensors))]

    def _uploaded(self, checkpoint: Checkpoint) -> torch.Tensor | None:
        """All bytes of a checkpoint on the model's GPU; None if they are not taken there so."""
        device = _gpu_of(self._targets)
        if device is None or not isinstance(checkpoint, HeldCheckpoint) or not self._staged:
            return _uploaded(checkpoint, device)
        size = checkpoint.layout.size
        if self._stage is None or len(self._stage) != size:
            try:
                self._stage = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            except RuntimeError:
                # So much memory cannot be pinned.
                self._staged = False
                return _uploaded(checkpoint, device)
        self._stage.copy_(_bytes_of(checkpoint))
        flat = self._stage.to(device, non_blocking=True)
        # It is written to again the next time.
        torch.cuda.current_stream(device).synchronize()
        return flat

    def _is_current(self) -> bool:
        """Whether the model has the very tensors that were found."""
        return places_of(self.model.state_dict()) == self._places

    def _holds(self, sources: list[torch.Tensor], flat: torch.Tensor | None) -> bool:
        """Whether the model's tensors are what was loaded, to the bit."""
        if flat is None or any(target.device != flat.device for target in self._targets):
            return _same(self._targets, sources)
        # All at once: on a GPU each comparison would be waited for.
        found = torch.cat([_bits(target).view(torch.uint8) for target in self._targets])
        return torch.equal(found, flat)


def load_into(model: torch.nn.Module, checkpoint: Checkpoint, *, check: bool = False) -> None:
    """Load one checkpoint into a model; see `Loader.load`."""
    Loader(model).load(checkpoint, check=check)


@torch.no_grad()
def copy_all(targets: list[torch.Tensor], checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's values into tensors of the same types and shapes, in its order."""
    sources = _sources(targets, checkpoint, _uploaded(checkpoint, _gpu_of(targets)))
    torch._foreach_copy_(targets, sources)


def _sources(
    targets: list[torch.Tensor], checkpoint: Checkpoint, flat: torch.Tensor | None
) -> list[torch.Tensor]:
    """A checkpoint's values, on the GPU for those targets that are there."""
    return [
        _values(checkpoint, at)
        if flat is None or not target.is_cuda
        else _part(flat, checkpoint, at)
        for at, target in enumerate(targets)
    ]


def _same(values: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether tensors are the same to the bit."""
    pairs = zip(values, others, strict=True)
    return all(torch.equal(_bits(one), _bits(other).to(one.device)) for one, other in pairs)


def _bits(value: torch.Tensor) -> torch.Tensor:
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(_INTEGERS[value.dtype.itemsize])


def _gpu_of(targets: list[torch.Tensor]) -> torch.device | None:
    return next((target.device for target in targets if target.is_cuda), None)


def _uploaded(checkpoint: Checkpoint, device: torch.device | None) -> torch.Tensor | None:
    """All bytes of a checkpoint on a GPU, in one piece; None if they are not held so."""
    if device is None or not isinstance(checkpoint, HeldCheckpoint):
        return None
    return _bytes_of(checkpoint).to(device)


def _bytes_of(checkpoint: HeldCheckpoint) -> torch.Tensor:
    return torch.frombuffer(_writable(checkpoint.data), dtype=torch.uint8)


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
