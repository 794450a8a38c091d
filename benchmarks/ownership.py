"""The report's section on ownership after attacks, from `results/robustness.json`."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import table
from polo.protocol.combination import GRINDING_BITS

Row = Mapping[str, Any]

_TEXT = """\
`python -m benchmarks robustness`, {date}. Each model was trained with a real chain, a shard an
epoch, by SGD at rate {rate:g}; then every attack of `polo_lab.attacks`. *Moved* is the norm of
what the attack changed in the weights, relative to theirs. η is the part of a mark's bits that
read right: the mean is over all marks and models, the worst is one mark of one model. log2 p
combines all marks of the chain, with 2^{granted} tries granted for each; of the models the
weakest is shown. The owner is named where it is {claim} or below."""
_AGAIN = "The same command on a machine with a GPU, {date}."

_HEAD = (
    "attack", "accuracy before", "after", "weights moved", "mean η", "worst mark η",
    "log2 p, weakest", "owner named",
)  # fmt: skip
_DISPUTE = ("attack", "thief's mean η", "thief's log2 p, strongest", "polo compare")
_ORDERS = {
    "first": "the owner came first",
    "second": "the thief came first",
    "unrelated": "unrelated",
    "undecided": "could not decide",
}


def sections(recorded: Mapping[str, Any], *, again: bool) -> Iterator[str]:
    """Text and tables, a pair for each subject; what was said before is not said again."""
    settings, rows = recorded["settings"], recorded["rows"]
    yield _AGAIN.format(**settings) if again else _TEXT.format(granted=GRINDING_BITS, **settings)
    for subject in dict.fromkeys(row["subject"] for row in rows):
        yield from _subject([row for row in rows if row["subject"] == subject])


def _subject(rows: Sequence[Row]) -> Iterator[str]:
    first = rows[0]
    by_attack = {
        name: [row for row in rows if row["attack"] == name]
        for name in dict.fromkeys(row["attack"] for row in rows)
    }
    models = len({row["seed"] for row in rows})
    plural = "" if models == 1 else "s"
    yield (
        f"**{first['subject']}**: {models} model{plural}, {first['epochs']} epochs, marks of "
        f"{first['bits']} bits."
    )
    yield table.markdown(_HEAD, [_line(name, found) for name, found in by_attack.items()])
    disputed = {name: found for name, found in by_attack.items() if "compared" in found[0]}
    if disputed:
        yield "Where the thief has a proof, too:"
        lines = [_dispute(name, found) for name, found in disputed.items()]
        yield table.markdown(_DISPUTE, lines)


def _line(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    before, after, eta = (
        statistics.fmean(row[key] for row in rows) for key in ("before", "after", "eta")
    )
    marked = rows[0]["marked"]
    named = sum(row["finding"] == "claim" for row in rows)
    values = [row["log2_p"] for row in rows]
    # Of an unmarked model the strongest claim is the one to look at.
    weakest = max(values) if marked else min(values)
    good = named == (len(rows) if marked else 0)
    return (
        name,
        f"{before:.3f}" if marked else "–",
        f"{after:.3f}",
        _moved(rows),
        f"{eta:.3f}",
        f"{min(row['worst_eta'] for row in rows):.3f}",
        f"{weakest:.0f}",
        f"{named} of {len(rows)}" if good else f"**{named} of {len(rows)}**",
    )


def _moved(rows: Sequence[Row]) -> str:
    found = [row["moved"] for row in rows]
    return "–" if None in found or not rows[0]["marked"] else f"{statistics.fmean(found):.1%}"


def _dispute(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    orders = Counter(_ORDERS[row["compared"]] for row in rows)
    return (
        name,
        f"{statistics.fmean(row['thief']['eta'] for row in rows):.3f}",
        f"{min(row['thief']['log2_p'] for row in rows):.0f}",
        "; ".join(f"{order} ({count} of {len(rows)})" for order, count in orders.items()),
    )
