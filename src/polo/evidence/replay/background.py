"""One thread that does jobs in order, beside training."""

import os
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from polo.errors import ChainError, WeightsError

Job = TypeVar("Job")


class Background(Generic[Job]):
    """Does jobs in order on a thread of its own.

    After a job has failed, those that follow are dropped, and the failure is kept.

    Args:
        work: Does a job, whose text says what it is. It must not know the object whose end is to
            stop this thread.
        drop: Called with every job that is not done.
        close: Called on the thread, after its last job.

    Attributes:
        failure: The job that failed, and why.
    """

    def __init__(
        self,
        work: Callable[[Job], None],
        drop: Callable[[Job], None],
        close: Callable[[], None],
    ) -> None:
        self._work = work
        self._drop = drop
        self._close = close
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._process = os.getpid()
        self._stopped = False
        self.failure: tuple[Job, BaseException] | None = None
        self._thread = threading.Thread(target=self._run, name="polo-recorder", daemon=True)
        self._thread.start()

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

    @property
    def idle(self) -> bool:
        """Whether every job is done or dropped."""
        return not self._jobs.unfinished_tasks

    def submit(self, job: Job) -> None:
        """Hand a job over."""
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until every job is done or dropped."""
        if self.here:
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
            if self.failure is not None or self._stopped:
                self._drop(job)
            else:
                try:
                    self._work(job)
                except BaseException as error:
                    self.failure = job, error
            self._jobs.task_done()
        self._close()
