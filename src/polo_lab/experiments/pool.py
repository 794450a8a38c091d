"""Many measurements in processes of one thread each, recorded line by line as they are done."""

import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from polo_lab.experiments import machine

Unit = TypeVar("Unit")
Result = TypeVar("Result")


def measured(
    measure: Callable[[Unit], Result], work: Sequence[Unit], *, workers: int, deadline: float
) -> Iterator[Result]:
    """What each unit gave, as it is done; units are handed out one by one.

    Args:
        measure: Measures one unit; a function of a module, since other processes call it.
        work: The units.
        workers: Processes; 0 measures in this one, with all its threads.
        deadline: Begin no unit after this time, by `time.monotonic`.
    """
    if not work or time.monotonic() > deadline:
        return
    if not workers:
        _quiet()
        yield from (measure(unit) for unit in work if time.monotonic() < deadline)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    context, waiting = multiprocessing.get_context("spawn"), iter(work)
    with ProcessPoolExecutor(workers, context, initializer=_prepare) as pool:
        running = {pool.submit(measure, unit) for unit in islice(waiting, workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            if time.monotonic() < deadline:
                running |= {pool.submit(measure, unit) for unit in islice(waiting, len(done))}
            yield from (future.result() for future in done)


def begin(out: Path, workers: int) -> None:
    """Add the header of a call to a recording."""
    out.parent.mkdir(parents=True, exist_ok=True)
    add(out, {"run": machine.header(workers)})


def add(out: Path, value: dict[str, object]) -> None:
    """Add a line to a recording that several processes write; each line goes out in one piece."""
    # A line that was cut must not swallow this one, which is why it begins with a line break.
    line = f"\n{json.dumps(value, ensure_ascii=False)}\n".encode()
    with out.open("ab", buffering=0) as file:
        file.write(line)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a recording; one that was cut is left out."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _prepare() -> None:
    """One thread for each process: together they fill the cores."""
    import torch

    torch.set_num_threads(1)
    _quiet()


def _quiet() -> None:
    warnings.simplefilter("ignore")
