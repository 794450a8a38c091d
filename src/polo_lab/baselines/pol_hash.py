"""Proof of learning by hashes after Zhao et al. (2024), as PoLO's paper describes it.

The prover saves weights every k steps as before, and hashes them. It publishes hashes alone: here
each link of a chain covers the one before, the digest of the weights, that of the optimizer's
state, and that of the samples in between, so that the last link, 32 bytes, is all that a verifier
has to keep. When asked, the prover hands over all digests and the checkpoints of the segments that
were drawn, with the data. The verifier

1. checks that the digests lead to the link it keeps, and that the first ones are those of the start
   which the agreed seed draws;
2. hashes the checkpoint before a segment, and finds the digest among them;
3. trains from there, hashes what comes out, and finds that among them, too: to the bit.

Assumed, since PoLO's paper does not spell it out: the chain (it has single hashes), a start that is
drawn from an agreed seed, segments that the verifier draws by its own randomness, and the digest of
replay (`polo.evidence.replay.state`). Rewards and penalties of the original are no part of it.
Nothing but equal bits will do: where kernels or machines round otherwise an honest prover is
rejected, and the figure `exact` says so.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polo.errors import PoloError
from polo_lab.baselines.cheats import Cheated
from polo_lab.baselines.job import Clock, Job, room
from polo_lab.baselines.rows import FULL, PROVING, checked, judged, proved, unproved
from polo_lab.baselines.trajectory import (
    Pair,
    Recorded,
    Trajectory,
    cleared,
    covered,
    entry,
    finished,
    head_of,
    held,
    record,
)
from polo_lab.baselines.verdict import Verdict

METHOD = "pol-hash"
_LOOKS = 12
"""Draws that a cheat is tried with: which segments are drawn decides whether it is seen."""

HEAD_FILE = "head"
"""The link that a verifier keeps, beside the trajectory, where a run is taken apart."""


def prove(job: Job, folder: Path) -> Recorded:
    """Train, keep a checkpoint every k steps, and chain their hashes."""
    return record(job, folder, hashed=True)


@dataclass(frozen=True)
class Options:
    """How a verifier looks.

    Attributes:
        draws: Segments that are run again, drawn at random; 0 for all.
        seed: The verifier's own; whoever does not know it cannot prepare.
    """

    draws: int = 0
    seed: int = 1


def verify(path: Path, job: Job, head: bytes, options: Options | None = None) -> Verdict:
    """Verify a proof.

    Args:
        path: The folder that the prover keeps; only what was drawn is read.
        job: Task and data that were agreed on; the data are disclosed to the verifier.
        head: The last link, which the verifier has kept.
        options: How to look.
    """
    clock = Clock(job.where)
    try:
        with job.settled():
            looking = _Verification(Trajectory(path, job), job, head, clock)
            return looking.verdict(options or Options())
    except PoloError as error:
        return Verdict(False, [str(error)], clock.seconds)


class _Verification:
    """One verification."""

    def __init__(self, trajectory: Trajectory, job: Job, head: bytes, clock: Clock) -> None:
        self._trajectory = trajectory
        self._job = job
        self._head = head
        self._clock = clock
        self._stepper = trajectory.stepper()

    def verdict(self, options: Options) -> Verdict:
        """All checks."""
        trajectory, clock, job = self._trajectory, self._clock, self._job
        everything, entries = range(len(trajectory.spans)), trajectory.entries
        if len(entries) != len(everything) + 1 or head_of(entries) != self._head:
            wrong = "the digests do not lead to the link that was kept"
            return Verdict(False, [wrong], clock.seconds)
        segments = list(everything)
        if options.draws:
            drawn = random.Random(options.seed)  # noqa: S311
            segments = sorted(drawn.sample(everything, min(options.draws, len(everything))))
        reasons = []
        with clock.phase("initialisation"):
            if entry(held(job.stepper()), []) != entries[0]:
                reasons.append("the start is not the one that the seed draws")
        with clock.phase("data"):
            if job.data_root() != trajectory.root:
                reasons.append("the data are not those that were committed to")
        found = [self._replayed(segment) for segment in segments]
        for what in ("starts", "ends"):
            wrong_ones = [at for at, one in zip(segments, found, strict=True) if one == what]
            if wrong_ones:
                reasons.append(
                    f"segment {wrong_ones[0]} {what} with weights of another hash, and with it "
                    f"{len(wrong_ones) - 1} more"
                )
        figures = {
            **covered(trajectory, job, segments),
            "exact": sum(not one for one in found),
            "bytes_read": sum(trajectory.size(at) for at in segments),
            "bytes_kept": len(self._head),
        }
        return Verdict(not reasons, reasons, clock.seconds, figures)

    def _replayed(self, segment: int) -> str:
        """Which end of a segment has another hash than it should; empty if none has."""
        trajectory, stepper, clock = self._trajectory, self._stepper, self._clock
        with clock.phase("loading"):
            start = trajectory.held(segment, stepper)
        with clock.phase("hashing"):
            known = self._recorded(segment, start)
        with clock.phase("replaying"):
            trajectory.run(stepper, segment, *start)
        with clock.phase("hashing"):
            same = self._recorded(segment + 1, held(stepper))
        if not known:
            return "starts"
        return "" if same else "ends"

    def _recorded(self, at: int, state: Pair) -> bool:
        """Whether a state at a boundary, and the samples up to it, are those that were hashed."""
        samples = self._trajectory.indices(at - 1) if at else []
        return entry(state, samples) == self._trajectory.entries[at]


def run(settings: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Prove, verify all and some, and try the cheats, under plain settings.

    Args:
        settings: Those of a job; `draws`, segments drawn at random (a quarter, at least 1);
            `cheats`, whether to try them.
        folder: Where to write; by default nothing is left.
    """
    job = Job.of(settings)
    draws = _draws(settings, job)
    with room(folder) as own:
        made = prove(job, own / METHOD)
        full, sampled = (verify(made.path, job, made.head, Options(n)) for n in (0, draws))

        def judge(cheated: Cheated) -> tuple[Verdict, list[Verdict]]:
            path, head = cheated.recorded.path, cheated.recorded.head
            looks = [Options(draws, seed) for seed in range(_LOOKS)]
            return verify(path, job, head), [verify(path, job, head, look) for look in looks]

        found = judged(job, own, judge, hashed=True) if settings.get("cheats") else {}
    return {**proved(METHOD, job, made), **checked(full=full, sampled=sampled), "cheats": found}


def run_part(settings: Mapping[str, Any], folder: Path, part: str) -> dict[str, Any]:
    """One part of a run: `proving`, or verifying what it has left, in `full` or `sampled`.

    Args:
        settings: Those of `run`.
        folder: Where the trajectory stays between parts.
        part: Which part.

    Raises:
        MissingError: There is no trajectory to verify.
    """
    job, path, head = Job.of(settings), folder / METHOD, folder / HEAD_FILE
    if part == PROVING:
        made = prove(job, cleared(path))
        head.write_bytes(made.head)
        return proved(METHOD, job, made)
    if not kept(folder):
        raise unproved(METHOD)
    link = head.read_bytes()
    if part == FULL:
        return {"method": METHOD, **checked(full=verify(path, job, link))}
    options = Options(_draws(settings, job))
    return {"method": METHOD, **checked(sampled=verify(path, job, link, options))}


def kept(folder: Path) -> bool:
    """Whether `proving` has left a whole trajectory in a folder, and the link beside it."""
    return finished(folder / METHOD) and (folder / HEAD_FILE).exists()


def _draws(settings: Mapping[str, Any], job: Job) -> int:
    return int(settings.get("draws", 0)) or max(1, -(-job.steps // job.apart) // 4)
