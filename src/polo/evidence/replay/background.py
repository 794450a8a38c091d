"""Jobs in order, beside training: by a thread, or a little of them whenever training passes by."""

import os
import queue
import threading
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from polo.errors import ChainError, WeightsError

Job = TypeVar("Job")


class Beside(Generic[Job]):
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

    def submit(self, job: Job) -> None:
        """Hand a job over."""
        raise NotImplementedError

    @property
    def passes(self) -> bool:
        """Whether `pass_by` has something to do."""
        return False

    def pass_by(self) -> None:
        """Training passes by, and is not to be held up."""

    def make_room(self) -> None:
        """Let go of what jobs before hold, as far as that is for this thread to do."""

    def wait(self) -> None:
        """Wait until every job is done or dropped."""
        raise NotImplementedError

    def stop(self) -> None:
        """Drop what is not done, and end."""
        raise NotImplementedError


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
            dropped = self.failure is not None or self._stopped
            try:
                (self._drop if dropped else self._work)(job)
            except BaseException as error:
                self.failure = self.failure or (job, error)
            self._jobs.task_done()
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
            self._go_on(job, self._work(job))

    def pass_by(self) -> None:
        """Go on with the job if what it waits for is over."""
        if self._under_way and self.here:
            self._go_on(*self._under_way)

    def make_room(self) -> None:
        """Let go of what the job before holds: all of it, when it is done."""
        self.wait()

    def wait(self) -> None:
        """Finish the job; each stage then waits for what it needs."""
        while self._under_way and self.here:
            job, stages, _ = self._under_way
            self._go_on(job, stages)

    def stop(self) -> None:
        """Leave the job that is under way, and end."""
        under_way, self._under_way = self._under_way, None
        if under_way:
            under_way[1].close()
        self._close()

    def _go_on(
        self,
        job: Job,
        stages: Generator[Callable[[], bool]],
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        """Go on with a job, if what it waits for is over or is to be waited for."""
        # Should this be interrupted, it counts as failed: nobody knows how far it came.
        self._under_way, self.failure = None, (job, InterruptedError("it was interrupted"))
        try:
            if is_over is None or is_over():
                is_over = next(stages, None)
        except Exception as error:
            self.failure = job, error
            return
        if is_over:
            self._under_way = job, stages, is_over
        self.failure = None
