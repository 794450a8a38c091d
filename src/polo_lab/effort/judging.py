"""Judging: the verifier draws, the prover answers, the verifier runs again; and what came of it."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import polo
from polo.checks import Check, Status
from polo.errors import PoloError
from polo.evidence.replay import challenge as drawing
from polo.evidence.replay.timeline import Timeline
from polo.protocol.challenge import Challenge
from polo.storage.folder import ProofFolder
from polo.tasks import Task
from polo_lab.effort.case import LEVELS, Attempt, Case
from polo_lab.effort.elsewhere import Rounding, elsewhere

START = "start"
"""The check of the start counts for itself: the paper's chain may start anywhere."""

REPLAYING = ("running segments again", "comparing samples", "measuring steps")
"""What a verifier says it does with an answer."""

_ENDINGS = {Status.FAILED: "failed", Status.UNDECIDED: "undecided", Status.PASSED: "passed"}


@dataclass(frozen=True)
class Judgement:
    """What a verifier said of an attempt.

    Attributes:
        outcome: `accepted`, `rejected` or `undecided`, by all levels that the terms ask for.
        levels: How each level's own checks, and `start`, ended: `passed`, `failed` or `undecided`;
            what was not reached is not in it.
        faults: Checks that failed or could not be decided, as `level/name`, each once.
        headline: The verdict in one sentence.
        accuracy: The accuracy of the newest checkpoint that the verifier tested.
        answering: Seconds that the prover's answer took.
        verifying: Seconds that the verifier took, replay included.
        replaying: Seconds of them that running segments again took, with all that is asked of them.
        replayed: Optimizer steps that were drawn.
        steps: Optimizer steps of the whole chain, as it says.
        silence: Why there was no answer; empty where there was one.
        work: Part of the work that was left to who leaves out all that changes nothing, as check
            `width` found it; None if that was not reached.
    """

    outcome: str
    levels: dict[str, str]
    faults: tuple[str, ...]
    headline: str
    accuracy: float | None
    answering: float
    verifying: float
    replaying: float
    replayed: int
    steps: int
    silence: str
    work: float | None


def judge(case: Case, attempt: Attempt, folder: Path, *, away: bool = False) -> Judgement:
    """Challenge an attempt and verify it.

    Args:
        case: The case that it was made for.
        attempt: The attempt.
        folder: Where the answer goes; it does not exist yet.
        away: Whether the verifier's machine is another one, which rounds otherwise.
    """
    with elsewhere() if away else nullcontext():
        return _judged(case, attempt, folder, Rounding(case.task) if away else case.task)


def _judged(case: Case, attempt: Attempt, folder: Path, task: Task) -> Judgement:
    challenge, replayed, steps = _drawn(attempt.proof)
    began = time.perf_counter()
    silence = _silence(attempt, challenge, folder) if challenge else "nothing could be drawn"
    answering = time.perf_counter() - began
    watch = Watch()
    verdict = polo.verify(
        attempt.proof,
        trust=case.issuer.public_key,
        task=task,
        challenge=challenge,
        answer=None if silence else folder,
        listener=watch,
    )
    watch.stop()
    return Judgement(
        outcome=verdict.outcome.name.lower(),
        levels=_endings(verdict.checks),
        faults=_faults(verdict.checks),
        headline=verdict.headline(),
        accuracy=_accuracy(verdict),
        answering=answering,
        verifying=sum(watch.seconds.values()),
        replaying=sum(watch.seconds[doing] for doing in REPLAYING),
        replayed=replayed,
        steps=steps,
        silence=silence,
        work=_work(verdict.checks),
    )


def _drawn(proof: Path) -> tuple[Challenge | None, int, int]:
    """A challenge, the steps it draws, and the steps of the chain; none of a broken record."""
    try:
        challenge = drawing.draw(proof)
        folder = ProofFolder(proof)
        timeline = Timeline.load(folder, folder.manifest())
    except PoloError:
        return None, 0, 0
    return challenge, sum(timeline.span(at).steps for at in challenge.segments), timeline.steps


def _silence(attempt: Attempt, challenge: Challenge, folder: Path) -> str:
    """Why there is no answer; empty where there is one."""
    if attempt.respond is None:
        return "stayed silent"
    try:
        attempt.respond(challenge, folder)
    except PoloError as error:
        return str(error)
    return ""


def _part(check: Check) -> str:
    return START if check.name == START else check.level


def _endings(checks: Sequence[Check]) -> dict[str, str]:
    endings = {}
    for part in (*LEVELS, START):
        found = {check.status for check in checks if _part(check) == part}
        if word := next((word for status, word in _ENDINGS.items() if status in found), ""):
            endings[part] = word
    return endings


def _faults(checks: Iterable[Check]) -> tuple[str, ...]:
    bad = (check for check in checks if check.status in (Status.FAILED, Status.UNDECIDED))
    return tuple(dict.fromkeys(f"{_part(check)}/{check.name}" for check in bad))


def _accuracy(verdict: polo.Verdict) -> float | None:
    tested = verdict.per_shard("accuracy")
    found = tested[max(tested)].figures.get("measured") if tested else None
    return float(found) if found is not None else None


def _work(checks: Iterable[Check]) -> float | None:
    found = (check.figures.get("work") for check in checks if check.name == "width")
    work = next(found, None)
    return float(work) if work is not None else None


class Watch:
    """Hears what a verifier does, and how long it takes.

    Attributes:
        seconds: What each thing took that it said it was doing.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._doing, self._since = "beginning", time.perf_counter()

    def __call__(self, doing: str, done: int, total: int) -> None:
        """See `polo.verifier.Listener`."""
        now = time.perf_counter()
        self.seconds[self._doing] += now - self._since
        self._doing, self._since = doing, now

    def stop(self) -> None:
        """The verdict is there."""
        self("ended", 0, 0)
