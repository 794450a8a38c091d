"""Memory that another process can see: without a name, so none can be left behind."""

import mmap
import os
import sys
import tempfile
import weakref
from typing import Self

LARGE = 2**22
"""From so many bytes on, it pays to have another process hash what is there."""

_SHARED_FOLDER = "/dev/shm"  # noqa: S108 - files there get no names


class SharedMemory(mmap.mmap):
    """Memory that another process can map, zeros at first.

    Attributes:
        handle: The descriptor that it maps.
    """

    handle: int

    @classmethod
    def of(cls, size: int) -> Self | None:
        """Memory of so many bytes; None if they are few, or where it cannot be shared."""
        handle = _memory_file(size) if is_shared(size) else None
        if handle is None:
            return None
        try:
            found = cls(handle, size)
        except OSError:
            os.close(handle)
            return None
        found.handle = handle
        weakref.finalize(found, os.close, handle)
        return found


def is_shared(size: int) -> bool:
    """Whether memory of so many bytes is shared, if there is enough of it."""
    # A program made from Python could not start Python, so nobody would be there to share it with.
    return size >= LARGE and sys.platform == "linux" and not getattr(sys, "frozen", False)


def _memory_file(size: int) -> int | None:
    """A file in memory that has no name; None if there can be none."""
    try:
        if hasattr(os, "memfd_create"):
            # Is this process's memory, however small a container's shared folder may be.
            handle = os.memfd_create("polo")
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
