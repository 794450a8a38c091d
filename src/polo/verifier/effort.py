"""The levels of evidence that show effort, fed while the checkpoints of a proof are walked."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from polo.checks import Check, Status, problem
from polo.errors import PoloError, TaskError
from polo.evidence.replay.request import Request
from polo.protocol.carrier import Carrier
from polo.protocol.records import Manifest, Nonce
from polo.storage.folder import ProofFolder
from polo.tasks import Task
from polo.weights.checkpoint import Checkpoint

__all__ = ["KNOWN", "Effort", "Request", "effort_of"]

KNOWN = ("progress", "replay")

Listener = Callable[[str, int, int], None]


class Level(Protocol):
    """One level: what it says before, at and after the checkpoints, newest first."""

    def opening(self) -> Iterator[Check]:
        """What can be said before any checkpoint is read."""

    def see(self, number: int, checkpoint: Checkpoint) -> Iterator[Check]:
        """A checkpoint whose root holds; 0 is the start."""

    def closing(self) -> Iterator[Check]:
        """What can be said when all have been seen."""


class Effort:
    """All levels of effort that the terms of a proof ask for."""

    def __init__(self, levels: Mapping[str, Level], obstacles: tuple[Check, ...] = ()) -> None:
        self._levels = dict(levels)
        self._obstacles = obstacles

    def opening(self) -> Iterator[Check]:
        """What can be said before any checkpoint is read."""
        yield from self._obstacles
        for level in list(self._levels):
            yield from self._guarded(level, self._levels[level].opening())

    @property
    def looking(self) -> bool:
        """Whether there are levels that look at checkpoints, which must not change meanwhile."""
        return bool(self._levels)

    def see(self, number: int, checkpoint: Checkpoint) -> Iterator[Check]:
        """Show a checkpoint whose root holds to every level."""
        for level in list(self._levels):
            yield from self._guarded(level, self._levels[level].see(number, checkpoint))

    def closing(self) -> Iterator[Check]:
        """What can be said when all checkpoints have been seen."""
        for level in list(self._levels):
            yield from self._guarded(level, self._levels[level].closing())

    def _guarded(self, level: str, checks: Iterator[Check]) -> Iterator[Check]:
        """A level that breaks says so, and is not asked again."""
        try:
            yield from checks
        except PoloError as error:
            del self._levels[level]
            yield _obstacle(level, error)
        except Exception as error:  # The task is the verifier's own and may fail as it likes.
            del self._levels[level]
            detail = f"the task could not be run: {type(error).__name__}: {error}"
            yield Check("evidence", Status.UNDECIDED, detail, level=level)


def effort_of(
    folder: ProofFolder,
    manifest: Manifest,
    carrier: Carrier,
    nonces: Mapping[int, Nonce],
    task: Task,
    request: Request,
    listener: Listener,
) -> Effort:
    """The levels that a proof's terms ask for, ready to be fed."""
    levels: dict[str, Level] = {}
    obstacles: list[Check] = []
    for item in manifest.terms.evidence:
        if item.level not in KNOWN:
            continue
        try:
            if item.level == "progress":
                from polo.evidence.progress.check import Progress

                levels[item.level] = Progress(manifest, carrier, nonces, task, request.device)
            if item.level == "replay":
                from polo.evidence.replay.check import Replay

                levels[item.level] = Replay(
                    folder, manifest, carrier, nonces, task, request, listener
                )
        except PoloError as error:
            obstacles.append(_obstacle(item.level, error))
    return Effort(levels, tuple(obstacles))


def _obstacle(level: str, error: PoloError) -> Check:
    """Why a level could not be looked at; a task that does not do is the verifier's."""
    status = Status.UNDECIDED if isinstance(error, TaskError) else None
    return problem("evidence", error, status, level=level)
