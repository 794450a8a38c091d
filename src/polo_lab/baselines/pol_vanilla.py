"""Proof of learning after Jia et al. (2021), called *PoL (vanilla)* in PoLO's paper.

The prover keeps a checkpoint every k steps, with the optimizer's state, and hands over all of them
with the numbers of the samples of every step, the hyper-parameters, and the data. The verifier

1. tests whether the first weights were drawn as the task draws them (Kolmogorov and Smirnov);
2. checks that the data are those that were committed to;
3. runs segments again, each from its own checkpoint: all of them, or in every epoch the Q with the
   largest updates, and compares where they end by l1, l2, l∞ and cosine.

Distances are taken over all trained parameters, as there. Thresholds are calibrated from honest
repetition on the verifier's machine (`polo_lab.baselines.distances`), where the original divides by
the distance of two independent trainings; the question asked is the same: is this as near as an
honest run comes? Signatures and time stamps of the original are left out: they cost nothing that
is measured here. So nothing in such a proof says whose it is, and whoever holds a copy passes with
it; a table that says so must say why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polo.errors import PoloError
from polo.evidence.replay.stepping import Stepper
from polo_lab.baselines.cheats import Cheated
from polo_lab.baselines.distances import (
    KINDS,
    Distances,
    calibrate,
    distances,
    thresholds,
    weights,
)
from polo_lab.baselines.initialisation import initialisation
from polo_lab.baselines.job import Clock, Job, room
from polo_lab.baselines.rows import FULL, PROVING, checked, judged, proved, unproved
from polo_lab.baselines.trajectory import (
    Recorded,
    Trajectory,
    cleared,
    covered,
    finished,
    record,
)
from polo_lab.baselines.verdict import Verdict

METHOD = "pol-vanilla"


def prove(job: Job, folder: Path) -> Recorded:
    """Train, and keep a checkpoint every k steps."""
    return record(job, folder)


@dataclass(frozen=True)
class Options:
    """How a verifier looks.

    Attributes:
        top: Segments of every epoch that are run again, by the largest update; 0 for all.
        allowed: Thresholds by kind; None to calibrate them first.
        elsewhere: Whether to allow for the rounding of another machine; None if the record says
            that there was one.
        seed: The verifier's own, for the test of the start.
    """

    top: int = 0
    allowed: Mapping[str, float] | None = None
    elsewhere: bool | None = None
    seed: int = 1


def verify(path: Path, job: Job, options: Options | None = None) -> Verdict:
    """Verify a proof.

    Args:
        path: The folder that the prover handed over.
        job: Task and data that were agreed on; the data are disclosed to the verifier.
        options: How to look.
    """
    clock = Clock(job.where)
    try:
        with job.settled():
            return _Verification(path, job, options or Options(), clock).verdict()
    except PoloError as error:
        return Verdict(False, [str(error)], clock.seconds)


def calibrated(path: Path, job: Job, *, elsewhere: bool | None = None) -> Distances:
    """Thresholds from honest repetition of the first segment and the last.

    Args:
        path: The folder that the prover handed over.
        job: Task and data that were agreed on.
        elsewhere: Whether to allow for the rounding of another machine; None if the record says
            that there was one.
    """
    with job.settled():
        trajectory = Trajectory(path, job)
        if elsewhere is None:
            elsewhere = trajectory.platform != job.platform
        ends = sorted({0, len(trajectory.spans) - 1})
        return thresholds(calibrate(trajectory, trajectory.stepper(), ends, elsewhere=elsewhere))


class _Verification:
    """One verification."""

    def __init__(self, path: Path, job: Job, options: Options, clock: Clock) -> None:
        self._path = path
        self._job = job
        self._options = options
        self._clock = clock
        self._trajectory = Trajectory(path, job)
        self._stepper: Stepper = self._trajectory.stepper()

    def verdict(self) -> Verdict:
        """All checks."""
        trajectory, clock, job = self._trajectory, self._clock, self._job
        reasons = []
        with clock.phase("initialisation"):
            first = trajectory.model(0, self._stepper)
            start = initialisation(first, job.lab_task, seed=self._options.seed)
        if not start.passed:
            reasons.append(f"{start.tensor} of the start was not drawn: p = {start.p:.2g}")
        with clock.phase("data"):
            if job.data_root() != trajectory.root:
                reasons.append("the data are not those that were committed to")
        with clock.phase("choosing"):
            segments = self._chosen()
        with clock.phase("calibrating"):
            allowed = self._options.allowed or calibrated(
                self._path, job, elsewhere=self._options.elsewhere
            )
        found = [self._replayed(segment) for segment in segments]
        reasons += _too_far(found, segments, allowed)
        figures = {
            **covered(trajectory, job, segments),
            "thresholds": dict(allowed),
            "largest": {k: max((one[k] for one in found), default=0.0) for k in KINDS},
            "exact": sum(not any(one.values()) for one in found),
            "initialisation_p": start.p,
            "initialisation_statistic": start.statistic,
            "bytes_read": self._bytes_read(segments),
        }
        return Verdict(not reasons, reasons, clock.seconds, figures)

    def _chosen(self) -> list[int]:
        """Segments to run again: all, or those of the largest updates in every epoch."""
        everything = list(range(len(self._trajectory.spans)))
        if not self._options.top:
            return everything
        before, moves = self._weights(0), []
        for segment in everything:
            after = self._weights(segment + 1)
            moves.append((after - before).norm())
            before = after
        sizes = [float(move) for move in moves]
        epochs: dict[int, list[int]] = {}
        for segment in everything:
            first, _ = self._trajectory.spans[segment]
            epochs.setdefault(first // self._job.pass_steps, []).append(segment)
        largest = (
            sorted(members, key=lambda s: -sizes[s])[: self._options.top]
            for members in epochs.values()
        )
        return sorted(segment for members in largest for segment in members)

    def _bytes_read(self, segments: Sequence[int]) -> int:
        """Bytes of all files that were read, each once; to choose, weights of all boundaries."""
        ends = {segment + side for segment in segments for side in (0, 1)}
        looked = range(len(self._trajectory.spans) + 1) if self._options.top else (0,)
        alone = sum(self._trajectory.size(at, "model") for at in looked if at not in ends)
        return alone + sum(self._trajectory.size(at) for at in ends)

    def _weights(self, at: int) -> torch.Tensor:
        return weights(self._stepper, self._trajectory.model(at, self._stepper))

    def _replayed(self, segment: int) -> Distances:
        """How far a segment comes out from where the prover says."""
        trajectory, stepper, clock = self._trajectory, self._stepper, self._clock
        with clock.phase("loading"):
            start = trajectory.held(segment, stepper)
            shown, _ = trajectory.held(segment + 1, stepper)
        with clock.phase("replaying"):
            trajectory.run(stepper, segment, *start)
        with clock.phase("comparing"):
            begun, end = weights(stepper, start[0]), weights(stepper, shown)
            return distances(weights(stepper), end, begun)


def _too_far(
    found: Sequence[Distances], segments: Sequence[int], allowed: Mapping[str, float]
) -> list[str]:
    """What is too far from where it should be, the first of each kind."""
    reasons = []
    for kind in KINDS:
        wrong = [
            (at, one[kind])
            for at, one in zip(segments, found, strict=True)
            if one[kind] > allowed[kind]
        ]
        if wrong:
            at, far = wrong[0]
            reasons.append(
                f"{len(wrong)} segments end too far away by {kind}; the first is {at}: "
                f"{far:.3g}, where {allowed[kind]:.3g} is allowed"
            )
    return reasons


def run(settings: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Prove, verify all and the largest updates, and try the cheats, under plain settings.

    Args:
        settings: Those of a job; `top`, segments of every epoch (1); `elsewhere`, whether to allow
            for another machine's rounding; `cheats`, whether to try them.
        folder: Where to write; by default nothing is left.
    """
    job, top = Job.of(settings), _top(settings)
    clock = Clock(job.where)
    with room(folder) as own:
        made = prove(job, own / METHOD)
        # Counted apart: the verifier of the original has its thresholds beforehand.
        with clock.phase("calibrating"):
            allowed = calibrated(made.path, job, elsewhere=settings.get("elsewhere"))
        looks = Options(0, allowed), Options(top, allowed)
        full, sampled = (verify(made.path, job, look) for look in looks)

        def judge(cheated: Cheated) -> tuple[Verdict, list[Verdict]]:
            path = cheated.recorded.path
            return verify(path, job, looks[0]), [verify(path, job, looks[1])]

        found = judged(job, own, judge, hashed=False) if settings.get("cheats") else {}
    return {
        **proved(METHOD, job, made),
        **checked(full=full, sampled=sampled),
        "calibrating_seconds": clock.total(),
        "cheats": found,
    }


def run_part(settings: Mapping[str, Any], folder: Path, part: str) -> dict[str, Any]:
    """One part of a run: `proving`, or verifying what it has left, in `full` or `sampled`.

    Args:
        settings: Those of `run`.
        folder: Where the trajectory stays between parts.
        part: Which part.

    Raises:
        MissingError: There is no trajectory to verify.
    """
    job, path = Job.of(settings), folder / METHOD
    clock = Clock(job.where)
    if part == PROVING:
        return proved(METHOD, job, prove(job, cleared(path)))
    if not kept(folder):
        raise unproved(METHOD)
    with clock.phase("calibrating"):
        allowed = calibrated(path, job, elsewhere=settings.get("elsewhere"))
    if part == FULL:
        found = checked(full=verify(path, job, Options(0, allowed)))
    else:
        found = checked(sampled=verify(path, job, Options(_top(settings), allowed)))
    return {"method": METHOD, **found, "calibrating_seconds": clock.total()}


def kept(folder: Path) -> bool:
    """Whether `proving` has left a whole trajectory in a folder."""
    return finished(folder / METHOD)


def _top(settings: Mapping[str, Any]) -> int:
    return int(settings.get("top", 1))
