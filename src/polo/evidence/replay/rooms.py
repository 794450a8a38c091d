"""Memory for states that are read one after the other, used again.

Fresh memory for a state of a hundred megabytes costs more than copying its bytes: the system clears
every page first, and takes it back afterwards. Devices copy faster from memory whose pages stay
where they are, and to have them stay takes time, too.
"""

import weakref

from polo.evidence.replay.memory import Memory


class Rooms:
    """Gives out memory, and takes it back when nobody looks at it any more; for any thread.

    There are never more rooms of one size than were in use at once.

    Args:
        pinned: Whether CUDA devices are to copy from there.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        # No lock: rooms come back whenever garbage is collected, which may be anywhere.
        self._free: dict[int, list[Memory]] = {}
        weakref.finalize(self, _release, self._free).atexit = False

    def room(self, size: int) -> memoryview:
        """Memory of so many bytes, of any content; it is free again with the last view of it."""
        try:
            memory = self._free.setdefault(size, []).pop()
        except IndexError:
            memory = Memory(size, pinned=self._pinned)
        # Every view refers to what it was made of, so this array goes with the last of them.
        array = memory.tensor.numpy()
        weakref.finalize(array, self._back, size, memory).atexit = False
        return array.data

    def _back(self, size: int, memory: Memory) -> None:
        self._free.setdefault(size, []).append(memory)


def _release(free: dict[int, list[Memory]]) -> None:
    for rooms in free.values():
        for memory in rooms:
            memory.release()
