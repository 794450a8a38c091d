"""Hashing in a process of its own, beside training or beside others like it.

Training's thread is often busy with Python all the time. Every hash that another thread of the
same process computes takes the interpreter's lock from it and gives it back, so a snapshot of a
hundred tensors costs training milliseconds. A process of its own has a lock of its own: all that
remains here is a question and an answer. For the same reason many threads that hash at once are
hardly faster than a few, and many processes are.

The process is a convenience. Where it cannot be had, and for so few bytes that it would not pay,
threads of this process hash. They also take over when it dies or does not answer: the bytes are
still here, the digests are the same, and neither training nor a verdict need be lost for it.
"""

import logging
import os
import select
import socket
import subprocess
import sys
import time
from typing import BinaryIO, Protocol

from polo.weights import pieces

_PATIENCE = 60.0
_SLOWEST = 2**24
_INTERVAL = 5.0
_SELDOM = 16
"""Every so many looks that find nothing, the process is asked for as well."""

logger = logging.getLogger("polo.weights")


class Readable(Protocol):
    """Bytes, and the descriptor by which another process maps them; None if it cannot."""

    @property
    def data(self) -> memoryview:
        """The bytes."""

    @property
    def handle(self) -> int | None:
        """The descriptor."""


class Hasher:
    """Hashes pieces of memory, by a process of its own if the memory is shared.

    Args:
        threads: How many threads hash, here and there; by default some of the cores.
    """

    def __init__(self, threads: int | None = None) -> None:
        cores = os.cpu_count() or 1
        # Training needs the cores, too, and here the interpreter's lock.
        self._here = pieces.Hashing(threads or (2 if cores >= 8 else 1))
        self._threads = threads or max(1, min(4, cores // 4))
        self._process: _Process | None = None
        self._last: _Asked | None = None
        self._inherited: _Process | None = None
        self._lost = False

    def start(self) -> None:
        """Start the process, unless there is one or one was lost.

        Beside training on training's thread, which forks loaders' workers: one that is forked by
        another thread in the middle of this would hold open what this waits for to be closed.
        """
        self._disown()
        if self._process is None and not self._lost:
            try:
                self._process = _Process(self._threads)
            except OSError as error:
                self.lose(error)

    @property
    def elsewhere(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def hashes(self, memory: Readable, table: bytes) -> bytes:
        """The hashes of the pieces that a table lists, one after the other."""
        return self.ask(memory, table).answer()

    def ask(self, memory: Readable, table: bytes) -> "Question":
        """Ask for the same, without waiting."""
        question = Question(self, memory, table)
        if memory.handle is not None:
            question.asked = self._sent(memory.handle, len(memory.data), table)
        return question

    def digest(self, file: BinaryIO, size: int) -> bytes | None:
        """The hash of a file's first bytes, which the process maps: nobody copies them.

        Returns:
            None if there is no process, or it is lost, as by a file that is cut while it is read.
        """
        asked = self._sent(file.fileno(), size, pieces.table_of([(0, size, b"")]))
        if asked is None:
            return None
        try:
            return asked.wait()
        except OSError as error:
            self.lose(error)
            return None

    def _sent(self, handle: int, size: int, table: bytes) -> "_Asked | None":
        """What the process was asked about the pieces of a file; None if there is none."""
        self._disown()
        if self._last and not self._last.is_complete:
            # Whoever asked was interrupted: the answer would be taken for that to this question.
            self._end()
            self.start()
        if self._process is None:
            return None
        try:
            # Known before it is sent: who is interrupted in the middle has asked something.
            asked = self._last = self._process.question(size, table)
            asked.send(handle, table)
        except OSError as error:
            self.lose(error)
            return None
        return asked

    def here(self, memory: Readable, table: bytes) -> bytes:
        """The same by threads of this process."""
        return self._here.hashes(memory.data, table)

    def lose(self, error: OSError) -> None:
        """Do without the process."""
        self._lost = True
        self._end()
        logger.warning("the process that hashes is lost (%s); threads go on in its place", error)

    def close(self) -> None:
        """End the process, and all threads."""
        self._end()
        self._here.close()
        self._lost = False

    def _disown(self) -> None:
        """Leave a process alone that belongs to the one that this was forked from."""
        if self._process and self._process.owner != os.getpid():
            # Kept, so that nothing is done to it.
            self._inherited, self._process, self._last = self._process, None, None

    def _end(self) -> None:
        self._disown()
        process, self._process, self._last = self._process, None, None
        if process:
            process.end()


class Question:
    """What a hasher was asked.

    Args:
        hasher: The hasher.
        memory: The bytes, which must stay as they are.
        table: The pieces in them.

    Attributes:
        asked: What its process was asked, if it was.
    """

    def __init__(self, hasher: Hasher, memory: Readable, table: bytes) -> None:
        self._hasher, self._memory, self._table = hasher, memory, table
        self.asked: _Asked | None = None

    def is_answered(self) -> bool:
        """Whether `answer` need not wait for a process."""
        if self.asked is None:
            return True
        try:
            return self.asked.look()
        except OSError as error:
            self._lost(error)
            return True

    def answer(self) -> bytes:
        """The hashes."""
        if self.asked is not None:
            try:
                return self.asked.wait()
            except OSError as error:
                self._lost(error)
        return self._hasher.here(self._memory, self._table)

    def _lost(self, error: OSError) -> None:
        self.asked = None
        self._hasher.lose(error)


class _Process:
    """The process that hashes.

    Raises:
        OSError: It cannot be started.

    Attributes:
        owner: The process that it was started by.
    """

    def __init__(self, threads: int) -> None:
        self.owner = os.getpid()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(_INTERVAL)
        # Not `select.select`, which knows the first 1,024 descriptors alone.
        self._ready = select.poll()
        self._ready.register(self._connection, select.POLLIN)
        with theirs:
            try:
                # A session of its own: who interrupts training at a terminal does not mean this
                # process, which training may need to finish its record.
                self._process = subprocess.Popen(  # noqa: S603
                    command(threads), stdin=theirs.fileno(), stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            except BaseException:
                self._connection.close()
                raise

    def question(self, size: int, table: bytes) -> "_Asked":
        """A question about pieces of a memory file that has so many bytes; it is yet to be sent."""
        deadline = time.monotonic() + _PATIENCE + size / _SLOWEST
        return _Asked(self, pieces.answer_size(table), deadline)

    def send(self, handle: int, table: bytes) -> None:
        """Send a question.

        Raises:
            OSError: It cannot be sent.
        """
        pieces.ask(self._connection, handle, table)

    def received(self, most: int, deadline: float) -> bytes:
        """The next bytes; none if the process has ended, or is too late."""
        while True:
            try:
                return self._connection.recv(most)
            except TimeoutError:
                if self.is_over(deadline):
                    return b""

    def has_more(self) -> bool:
        """Whether `received` would not wait."""
        return bool(self._ready.poll(0))

    def is_over(self, deadline: float) -> bool:
        """Whether nothing more will come."""
        # Whoever was forked while the process was started may hold its end open for ever.
        return self._process.poll() is not None or time.monotonic() > deadline

    def lost(self) -> ConnectionError:
        """What is wrong if it does not answer."""
        return ConnectionError(f"process {self._process.pid} does not answer")

    def end(self) -> None:
        """End the process, which has nothing to lose."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class _Asked:
    """A question that a process was asked, and as much of the answer as has come."""

    def __init__(self, process: _Process, size: int, deadline: float) -> None:
        self._process, self._size, self._deadline = process, size, deadline
        self._found = b""
        self._cut = False
        self._looks = 0

    @property
    def is_complete(self) -> bool:
        """Whether all of the answer has been received."""
        return len(self._found) == self._size

    def send(self, handle: int, table: bytes) -> None:
        """Send it.

        Raises:
            OSError: It cannot be sent.
        """
        self._process.send(handle, table)

    def look(self) -> bool:
        """Whether all of the answer has come.

        Raises:
            OSError: It will not.
        """
        while missing := self._size - len(self._found):
            if not self._cut and not self._process.has_more():
                self._looks += 1
                # Who looks passes by in the middle of training, and a process that ends nearly
                # always closes its connection, which is something to find.
                seldom = self._looks % _SELDOM == 0 and self._process.is_over(self._deadline)
                if seldom and not self._process.has_more():
                    raise self._process.lost()
                return False
            self._more(missing)
        return True

    def wait(self) -> bytes:
        """The answer.

        Raises:
            OSError: There is none.
        """
        while missing := self._size - len(self._found):
            self._more(missing)
        return self._found

    def _more(self, missing: int) -> None:
        # Whoever was interrupted in here may have lost what came.
        cut, self._cut = self._cut, True
        more = b"" if cut else self._process.received(missing, self._deadline)
        if not more:
            raise self._process.lost()
        self._found += more
        self._cut = False


def command(threads: int) -> list[str]:
    """How the process is started: with the standard library, and nothing else that may be found."""
    return [sys.executable or "", "-I", "-S", pieces.__file__, str(threads), str(os.getpid())]
