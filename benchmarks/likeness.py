"""The report's section on level progress, from `results/progress.json`."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import table
from polo_lab.experiments.statistics import clopper_pearson

Row = Mapping[str, Any]

_TEXT = """\
`python -m benchmarks progress`. Four small tasks in turn (digits with convolutions, digits with
linear layers, breast cancer, letters), with optimizer, schedule, number of shards (3 to 20) and,
for the honest, learning rate drawn at random. Every chain has real marks and real noise, and is
judged by the default thresholds of docs/protocol.md, section 15: `downhill` {downhill:g}, `moved`
{moved:g}, `clear` {clear:g}, `straight` {straight:g}, `fall` {fall:g}. A forger holds a finished
model from another start, and all data. *Cost* is real gradient steps against those of honest
training. Numbers are medians, with the smallest and the largest; intervals are Clopper–Pearson's
at 95 %."""
_HEAD = (
    "run", "cost", "rejected", "interval", "at", "early z", "moved", "straight", "loss fell by",
)  # fmt: skip


def section(recorded: Mapping[str, Any]) -> Iterator[str]:
    """Text and table."""
    rows = recorded["rows"]
    yield _TEXT.format(**recorded["settings"]["rules"])
    kinds = dict.fromkeys(row["kind"] for row in rows)
    yield table.markdown(
        _HEAD, [_line([row for row in rows if row["kind"] == kind]) for kind in kinds]
    )
    diverged = sum("diverged" in row for row in rows)
    if diverged:
        yield f"{diverged} honest runs diverged at too high a rate; there is nothing to judge then."


def _line(rows: Sequence[Row]) -> tuple[str, ...]:
    judged = [row for row in rows if "failed" in row]
    rejected = [row for row in judged if row["failed"]]
    low, high = clopper_pearson(len(rejected), len(judged))
    where = Counter(name for row in rejected for name in row["failed"])
    # Where noise hides the path its straightness says nothing.
    seen = [row for row in judged if "path" not in row["open"]]
    return (
        rows[0]["kind"],
        f"{statistics.median(row['cost'] for row in judged):.0%}",
        f"{len(rejected)} of {len(judged)}",
        f"{low:.1%} to {high:.1%}",
        ", ".join(f"{name} {count}" for name, count in where.most_common()) or "–",
        _range(judged, "early", 1),
        _range(judged, "moved", 2),
        _range(seen, "straight", 3),
        _range([{"fall": 100 * row["fall"]} for row in judged], "fall", 0, " %"),
    )


def _range(rows: Sequence[Row], name: str, digits: int, unit: str = "") -> str:
    values = [row[name] for row in rows if row[name] is not None]
    if not values:
        return "–"
    ends = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    return f"{statistics.median(values):.{digits}f}{unit} ({ends})"
