"""Memory on the host that another process can see: without a name, so none can be left behind."""

import contextlib
import mmap
import os
import sys
import tempfile
import weakref

import torch

LARGE = 2**22
"""From so many bytes on, memory is shared, so that another process can hash it."""

_SHARED_FOLDER = "/dev/shm"  # noqa: S108 - files there get no names
_PORTABLE = 1


def is_shared(size: int) -> bool:
    """Whether memory of so many bytes is shared, if there is enough of it."""
    # A program made from Python could not start Python, so nobody would be there to share it with.
    return size >= LARGE and sys.platform == "linux" and not getattr(sys, "frozen", False)


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
        self.handle = _memory_file(size) if is_shared(size) else None
        self._registered = False
        if self.handle is None:
            self.tensor = torch.zeros(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            return
        weakref.finalize(self, os.close, self.handle)
        self.tensor = torch.frombuffer(mmap.mmap(self.handle, size), dtype=torch.uint8)
        if pinned:
            self._registered = _register(self.tensor)

    def release(self) -> None:
        """Tell CUDA devices that they no longer copy there."""
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
            self._registered = False


def _memory_file(size: int) -> int | None:
    """A file in memory that has no name; None if there can be none."""
    try:
        if hasattr(os, "memfd_create"):
            # Is this process's memory, however small a container's shared folder may be.
            handle = os.memfd_create("polo-snapshot")
        else:
            with tempfile.TemporaryFile(dir=_SHARED_FOLDER) as file:
                handle = os.dup(file.fileno())
    except OSError:
        return None
    try:
        # Where there is no room, fail now: to fail at the first write is to be killed.
        os.posix_fallocate(handle, 0, size)
    except OSError:
        os.close(handle)
        return None
    return handle


def _register(tensor: torch.Tensor) -> bool:
    """Have pages stay where they are; without it copies are as right, but the CPU makes them."""
    runtime = torch.cuda.cudart()
    if not int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.numel(), _PORTABLE)):
        return True
    # What failed is remembered, and blamed on the next kernel that this thread launches.
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")
    return False
