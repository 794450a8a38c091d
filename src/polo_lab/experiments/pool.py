"""Many measurements in processes of one thread each, handed out one by one."""

import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from polo.errors import PoloError

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_PATIENCE = 1.0
"""Seconds between two looks at whether the parent is still there."""


def measured(
    measure: Callable[[Unit], Result], work: Sequence[Unit], *, workers: int, deadline: float
) -> Iterator[Result]:
    """What each unit gave, as it is done; units are handed out one by one.

    Args:
        measure: Measures one unit; a function of a module, since other processes call it.
        work: The units.
        workers: Processes; 0 measures in this one, with all its threads.
        deadline: Begin no unit after this time, by `time.monotonic`.

    Raises:
        PoloError: A process was killed.
    """
    if not work or time.monotonic() > deadline:
        return
    if not workers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for unit in work:
                if time.monotonic() < deadline:
                    yield measure(unit)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    context, waiting = multiprocessing.get_context("spawn"), iter(work)
    parent = os.getpid()
    with ProcessPoolExecutor(workers, context, initializer=_prepare, initargs=(parent,)) as pool:
        running = {pool.submit(measure, unit) for unit in islice(waiting, workers)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                if time.monotonic() < deadline:
                    running |= {pool.submit(measure, unit) for unit in islice(waiting, len(done))}
                yield from [future.result() for future in done]
        except BrokenProcessPool as error:
            raise PoloError(
                "a process was killed, most likely for want of memory",
                advice="What was done is recorded; run the same again with fewer --workers.",
            ) from error


def _prepare(parent: int) -> None:
    """One thread for each process: together they fill the cores."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _end_with(parent: int) -> None:
    """End when whoever handed out the work was killed: nobody else would be told what comes out."""
    while os.getppid() == parent:
        time.sleep(_PATIENCE)
    os._exit(1)
