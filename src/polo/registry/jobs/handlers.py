"""What there is to do, by name."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from polo.registry.context import Registry

Handler: TypeAlias = "Callable[[Registry, str], None]"
GiveUp: TypeAlias = "Callable[[Registry, str, str], None]"

HANDLERS: dict[str, Handler] = {}
"""Each kind of job. A handler gets the registry and the job's subject, and may be called again."""

GIVE_UP: dict[str, GiveUp] = {}
"""What to do when a kind of job failed for the last time; gets the error, too."""

PERIODIC: dict[str, int] = {}
"""Kinds of job that come again by themselves, with the seconds between."""

_MODULES = (
    "polo.registry.uploads.upkeep",
    "polo.registry.challenges.work",
    "polo.registry.scans.work",
    "polo.registry.verifications.work",
)


class Later(Exception):  # noqa: N818
    """A handler cannot go on now, which is nobody's fault: call it again.

    Attributes:
        seconds: After so many seconds.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"again in {seconds} s")
        self.seconds = seconds


def handler(
    kind: str, *, every: int | None = None, give_up: "GiveUp | None" = None
) -> Callable[[Handler], Handler]:
    """Register a function as the handler of a kind of job.

    Args:
        kind: The word that `enqueue` takes.
        every: Seconds after which such a job comes again by itself.
        give_up: Called when it failed for the last time.
    """

    def register(function: Handler) -> Handler:
        HANDLERS[kind] = function
        if every is not None:
            PERIODIC[kind] = every
        if give_up is not None:
            GIVE_UP[kind] = give_up
        return function

    return register


def load() -> None:
    """Import every module that has handlers; what is heavy they import when they are called."""
    for module in _MODULES:
        importlib.import_module(module)
