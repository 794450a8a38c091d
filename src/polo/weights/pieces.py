"""SHA-256 of pieces of memory, in this process or, as a program, for the process that started it.

As a program it needs nothing but the standard library. It is run by its path and not as a module,
so that neither this package nor what the working folder holds is imported. It ends when its parent
closes the connection, or is no more.

A request is the size of a table, which carries the descriptor of a memory file, and the table:
where each piece begins and ends, and what is hashed before it. The answer is the hashes of all
pieces in order. Nothing is kept between requests: when the parent lets go of memory, nobody else
holds it.
"""

import contextlib
import mmap
import os
import select
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

_HASH_BYTES = 32
_SIZE = struct.Struct("<Q")
_PIECE = struct.Struct("<QQ24p")
_MOST_FIRST = 23
_LITTLE = 2**20
_PATIENCE = 2.0


class Hashing:
    """Hashes pieces of memory on a few threads.

    Args:
        threads: How many, where there is more than a little to do.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def hashes(self, memory: memoryview, table: bytes) -> bytes:
        """The hashes of the pieces that a table lists, one after the other."""
        rows = list(_PIECE.iter_unpack(table))
        views = [memory[start:stop] for start, stop, _ in rows]
        hashes = [b""] * len(views)

        def hash_some(indices: Iterable[int]) -> None:
            for index in indices:
                state = sha256(rows[index][2])
                state.update(views[index])
                hashes[index] = state.digest()

        if self._threads == 1 or len(memory) < _LITTLE:
            hash_some(range(len(views)))
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._threads)
            # A future for each piece would wake this thread for each, only to fight for the lock.
            list(self._pool.map(hash_some, _shared(views, self._threads)))
        return b"".join(hashes)

    def close(self) -> None:
        """End all threads."""
        if self._pool:
            self._pool.shutdown()
            self._pool = None


def _shared(views: Sequence[memoryview], threads: int) -> list[list[int]]:
    """Indices of the views in lists of about as many bytes each."""
    parts: list[list[int]] = [[] for _ in range(threads)]
    loads = [0] * threads
    for index in sorted(range(len(views)), key=lambda index: -len(views[index])):
        least = loads.index(min(loads))
        parts[least].append(index)
        loads[least] += len(views[index])
    return parts


def table_of(pieces: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The table of some pieces: first byte, end, and what is hashed before it."""
    return b"".join(_PIECE.pack(start, stop, _short(first)) for start, stop, first in pieces)


def _short(first: bytes) -> bytes:
    # A longer one would be cut without a word.
    if len(first) > _MOST_FIRST:
        raise ValueError(f"{len(first)} bytes before a piece; {_MOST_FIRST} at most")
    return first


def answer_size(table: bytes) -> int:
    """How many bytes the hashes of a table's pieces have."""
    return len(table) // _PIECE.size * _HASH_BYTES


def ask(connection: socket.socket, handle: int, table: bytes) -> None:
    """Send a request.

    Args:
        connection: The connection.
        handle: The descriptor of a memory file.
        table: The pieces in it.
    """
    request = _SIZE.pack(len(table)) + table
    sent = socket.send_fds(connection, [request], [handle])
    if sent < len(request):
        connection.sendall(memoryview(request)[sent:])


def serve(connection: socket.socket, threads: int, parent: int) -> None:
    """Answer requests until the connection or the parent ends.

    Args:
        connection: The connection.
        threads: How many threads hash.
        parent: The process at the other end.

    Raises:
        ConnectionError: The connection has ended in the middle of something.
    """
    own = Hashing(threads)
    while True:
        # Whoever the parent forks holds its end of the connection, too: when the parent ends, the
        # connection need not.
        while not select.select([connection], [], [], _PATIENCE)[0]:
            if os.getppid() != parent:
                return
        header, handles, _, _ = socket.recv_fds(connection, _SIZE.size, 1)
        if not header:
            return
        header += _exactly(connection, _SIZE.size - len(header))
        table = _exactly(connection, *_SIZE.unpack(header))
        with mmap.mmap(handles[0], 0, prot=mmap.PROT_READ) as memory:
            os.close(handles[0])
            with memoryview(memory) as view:
                answer = own.hashes(view, table)
        connection.sendall(answer)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 2**20))
        if not part:
            raise ConnectionError("the parent has ended")
        found += part
    return bytes(found)


def main() -> None:
    """Serve the parent, which is at the other end of standard input."""
    threads, parent = map(int, sys.argv[1:])
    # If the parent is gone, nobody is left who could be told; and it finds out for itself about
    # a file that cannot be mapped, an empty one say.
    with contextlib.suppress(OSError, ValueError):
        serve(socket.socket(fileno=0), threads, parent)


if __name__ == "__main__":
    main()
