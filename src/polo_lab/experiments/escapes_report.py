"""The part of docs/results.md about chances of escape."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polo_lab.experiments.escapes import Escape
from polo_lab.experiments.recorded import FOLDER
from polo_lab.experiments.rows import HONEST
from polo_lab.experiments.statistics import clopper_pearson

RECORDED: Path = FOLDER / "escapes.json"
_HEAD = (
    "run", "optimizer", "segments faked", "drawn", "escape, stated", "escapes, observed",
    "95 % interval", "accepted, of those verified",
)  # fmt: skip

_WORDS = """\
Verdicts state how likely a prover escapes who faked so many segments. Here forgeries on a chain of
many segments, of which it is known which are faked, are challenged again and again: an escape is a
challenge that asks for none of them. That takes no running again; a few challenges of each are
answered and verified in full, where other checks may see what no draw did. The terms have `top` 0:
those of large moves would be run again on top of those drawn, and hardly a forgery would escape."""


def sections(runs: Sequence[dict[str, Any]], found: Sequence[Escape]) -> Iterator[str]:
    """The part's text, piece by piece; nothing if nothing was recorded."""
    if not found:
        return
    yield "## Chances of escape, stated and observed"
    yield _WORDS
    yield from (
        f"`{run['command']}` ({run['began'][:10]}) on {run['machine']['cpu']}." for run in runs
    )
    lines = [_HEAD, ("---",) * len(_HEAD), *map(_cells, found)]
    yield "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(row: Escape) -> tuple[str, ...]:
    low, high = clopper_pearson(row.missed, row.challenges)
    observed: tuple[str, ...] = (
        f"{100 * row.stated:.2g} %",
        f"{row.missed} of {row.challenges}",
        f"{100 * low:.1f} to {100 * high:.1f} %",
    )
    if row.attack == HONEST:
        observed = ("–",) * len(observed)
    return (
        row.attack,
        row.optimizer,
        f"{row.faked} of {row.segments}",
        str(row.drawn),
        *observed,
        f"{row.accepted} of {row.verified}",
    )
