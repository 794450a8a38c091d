"""What all commands print alike."""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""An option that is given or not."""

UNITS = ("B", "kB", "MB", "GB", "TB")


def print_json(value: Any) -> None:
    """Print a value as JSON for other programs."""
    print(json.dumps(value, indent=2))


def size(count: float) -> str:
    """A number of bytes as a person reads it.

    >>> size(44_740_000)
    '44.7 MB'
    """
    power = 0
    while count >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.{1 if power else 0}f} {UNITS[power]}"


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error, for terminals only; yields what to tell it."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield tell


@contextlib.contextmanager
def said_if_slow(text: str, *, seconds: float = 1.5) -> Iterator[None]:
    """Say on standard error what is waited for, if it is not over soon."""
    timer = threading.Timer(seconds, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
