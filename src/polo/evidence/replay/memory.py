"""Memory on the host for copies of a state: another process can see it, and devices copy to it."""

import contextlib

import torch

from polo.weights.sharing import SharedMemory

_PORTABLE = 1


class Memory:
    """Memory on the host for one copy of a state, zeros at first; shared if it is large.

    Args:
        size: How many bytes.
        pinned: Whether CUDA devices are to copy there. Then `release` must be called at last.

    Attributes:
        tensor: The bytes.
        handle: The descriptor by which another process maps them; None if they are not shared.
    """

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        shared = SharedMemory.of(size)
        self.handle = shared.handle if shared else None
        self._registered = False
        if shared is None:
            self.tensor = torch.zeros(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            return
        self.tensor = torch.frombuffer(shared, dtype=torch.uint8)
        if pinned:
            self._registered = _register(self.tensor)

    @property
    def pinned(self) -> bool:
        """Whether devices copy there without anybody's help."""
        return self._registered or self.tensor.is_pinned()

    @property
    def data(self) -> memoryview:
        """The bytes, as others than torch look at them."""
        return self.tensor.numpy().data

    def release(self) -> None:
        """Tell CUDA devices that they no longer copy there."""
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
            self._registered = False


def _register(tensor: torch.Tensor) -> bool:
    """Have pages stay where they are; without it copies are as right, but the CPU makes them."""
    runtime = torch.cuda.cudart()
    if not int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.numel(), _PORTABLE)):
        return True
    # What failed is remembered, and blamed on the next kernel that this thread launches.
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")
    return False
