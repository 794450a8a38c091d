"""Figures of proofs by replay, plain, under the names that both of them share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polo.errors import MissingError
from polo_lab.baselines.cheats import CHEATS, Cheated
from polo_lab.baselines.job import Job
from polo_lab.baselines.trajectory import Recorded
from polo_lab.baselines.verdict import Verdict

PROVING, FULL, SAMPLED = PARTS = ("proving", "full", "sampled")
"""What a run can be taken apart into, each by itself: a long one does not fit into one call."""


def proved(method: str, job: Job, made: Recorded) -> dict[str, Any]:
    """What proving took."""
    return {
        "method": method,
        "accuracy": made.accuracy,
        "steps": job.steps,
        "compiled": job.how_compiled(),
        "every": job.apart,
        "seconds": made.seconds,
        "generation_seconds": made.generation,
        "bytes_stored": made.stored,
    }


def checked(*, full: Verdict | None = None, sampled: Verdict | None = None) -> dict[str, Any]:
    """What verifying took, all of it or some."""
    found = {"verify_all": full, "verify_sampled": sampled}
    return {name: verdict.row() for name, verdict in found.items() if verdict is not None}


def unproved(method: str) -> MissingError:
    """The error for a part that verifies a trajectory which nobody has left.

    Proving first would take as long as training, for a caller who has time for one part.
    """
    return MissingError(
        f"no trajectory of {method} was left here to verify",
        advice=f"Measure all parts of it on one machine: polo-lab run timing --only method={method}"
        f" --only part={','.join(PARTS)} --rerun",
    )


def judged(
    job: Job,
    folder: Path,
    judge: Callable[[Cheated], tuple[Verdict, Sequence[Verdict]]],
    *,
    hashed: bool,
) -> dict[str, Any]:
    """What becomes of every cheat, by whoever looks at all segments and at some.

    Where those are drawn at random they are drawn several times, and one draw that accepts is
    enough for a forger who may try again.
    """
    rows = {}
    for name, cheat in CHEATS.items():
        made = cheat(job, folder / f"cheat-{name}", hashed=hashed)
        full, sampled = judge(made)
        rows[name] = {
            "accepted_all": full.accepted,
            "accepted_sampled": any(one.accepted for one in sampled),
            "accepted_draws": [sum(one.accepted for one in sampled), len(sampled)],
            "reasons": list(full.reasons),
            "worked": made.steps / job.steps,
            "accuracy": made.recorded.accuracy,
        }
    return rows
