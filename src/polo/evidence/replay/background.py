"""Jobs in order, beside training: by a thread, or a little of them whenever training passes by."""

import contextlib
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from polo.errors import ChainError, WeightsError

Job = TypeVar("Job")

_NAP = 0.0002
"""Seconds between two looks while somebody waits: a hundredth of what a large state takes."""


class Beside(ABC, Generic[Job]):
    """Jobs that are done in order, beside training.

    After a job has failed, those that follow are dropped, and the failure is kept.

    Attributes:
        failure: The job that failed, and why.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.failure: tuple[Job, BaseException] | None = None

    def check(self) -> None:
        """Raise if a job has failed, or if this is a forked child.

        Raises:
            ChainError: The thread is in another process.
            WeightsError: A job has failed; the error names it.
        """
        if not self.here:
            raise ChainError("this recorder belongs to the process that this one was forked from")
        if self.failure is not None:
            job, error = self.failure
            raise WeightsError(
                f"the state could not be recorded: {type(error).__name__}: {str(error)[:200]}",
                place=str(job),
            ) from error

    @property
    def here(self) -> bool:
        """Whether this is the process that the thread is in; a forked child has none."""
        return os.getpid() == self._process

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Hand a job over."""

    @property
    @abstractmethod
    def passes(self) -> bool:
        """Whether `pass_by` has something to do."""

    @abstractmethod
    def pass_by(self) -> None:
        """Training passes by, and is not to be held up."""

    @abstractmethod
    def make_room(self) -> None:
        """Let go of what jobs before hold, as far as that is for this thread to do."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until every job is done or dropped."""

    @abstractmethod
    def stop(self) -> None:
        """Drop what is not done, and end."""


class Background(Beside[Job]):
    """Does jobs on a thread of its own.

    Args:
        work: Does a job, whose text says what it is. It must not know the object whose end is to
            stop this thread.
        drop: Called with every job that is not done.
        close: Called on the thread, after its last job.
    """

    def __init__(
        self,
        work: Callable[[Job], None],
        drop: Callable[[Job], None],
        close: Callable[[], None],
    ) -> None:
        super().__init__()
        self._work = work
        self._drop = drop
        self._close = close
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="polo-recorder", daemon=True)
        self._thread.start()

    @property
    def passes(self) -> bool:
        """Never: the thread goes on by itself."""
        return False

    def pass_by(self) -> None:
        """Nothing is to be done."""

    def make_room(self) -> None:
        """Nothing is to be done: the thread does."""

    def submit(self, job: Job) -> None:
        """Hand a job over."""
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until every job is done or dropped."""
        if self.here and not self._stopped:
            self._jobs.join()

    def stop(self) -> None:
        """End the thread; jobs that it has not begun are dropped."""
        self._stopped = True
        self._jobs.put(None)
        # Garbage may be collected on any thread, this one too.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            dropped = self.failure is not None or self._stopped
            try:
                (self._drop if dropped else self._work)(job)
            except BaseException as error:
                self.failure = self.failure or (job, error)
            self._jobs.task_done()
        # What fails now is nobody's concern any more.
        with contextlib.suppress(Exception):
            self._close()


class Stages(Beside[Job]):
    """Does jobs on training's own thread, which never waits: what they wait for is elsewhere.

    A thread that only waits costs training the more. Whenever it wakes up it takes the
    interpreter's lock, and to get that back takes training longer than all that is done with it.

    Args:
        work: Does a job, and yields whenever there is something to wait for: a function that says
            whether that is over.
        drop: Called with every job that is not begun.
        close: Called at the end.
    """

    def __init__(
        self,
        work: Callable[[Job], Generator[Callable[[], bool]]],
        drop: Callable[[Job], None],
        close: Callable[[], None],
    ) -> None:
        super().__init__()
        self._work, self._drop, self._close = work, drop, close
        self._under_way: tuple[Job, Generator[Callable[[], bool]], Callable[[], bool]] | None = None

    @property
    def passes(self) -> bool:
        """Whether `pass_by` has something to do."""
        return self._under_way is not None

    def submit(self, job: Job) -> None:
        """Begin a job, once the one before is done."""
        self.wait()
        if self.failure is not None:
            self._drop(job)
        else:
            self._under_way = job, self._work(job), lambda: True
            self._go_on()

    def pass_by(self) -> None:
        """Go on with the job if what it waits for is over."""
        if self.here and self._is_over():
            self._go_on()

    def make_room(self) -> None:
        """Let go of what the job before holds: all of it, when it is done."""
        self.wait()

    def wait(self) -> None:
        """Finish the job. Who interrupts this can call it again."""
        while self._under_way and self.here:
            if self._is_over():
                self._go_on()
            else:
                time.sleep(_NAP)

    def stop(self) -> None:
        """Leave the job that is under way, and end."""
        under_way, self._under_way = self._under_way, None
        # As on a thread: what fails now is nobody's concern any more.
        with contextlib.suppress(Exception):
            if under_way:
                under_way[1].close()
        with contextlib.suppress(Exception):
            self._close()

    def _is_over(self) -> bool:
        """Whether there is a job, and what it waits for is over."""
        if self._under_way is None:
            return False
        job, stages, is_over = self._under_way
        try:
            return is_over()
        except Exception as error:
            self._under_way = None
            self._fail(job, error)
            with contextlib.suppress(Exception):
                stages.close()
            return False

    def _go_on(self) -> None:
        """Go on with the job that is under way."""
        assert self._under_way is not None
        job, stages, _ = self._under_way
        # Should this be interrupted, it counts as failed: nobody knows how far it came.
        self._under_way, self.failure = None, (job, InterruptedError("it was interrupted"))
        try:
            is_over = next(stages, None)
        except Exception as error:
            self._fail(job, error)
            return
        if is_over:
            self._under_way = job, stages, is_over
        self.failure = None

    def _fail(self, job: Job, error: Exception) -> None:
        # Without the frames of whoever trains, which it would keep alive.
        self.failure = job, error.with_traceback(None)
