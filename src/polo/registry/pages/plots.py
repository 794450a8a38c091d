"""A chain as drawings: its checkpoints one after the other, and three charts over its shards.

The drawings are those of the verifier's report: SVG without scripts, with words for those who
point at a mark and for those who do not see it. The table below them has the same figures.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from polo.checks import Status, counted
from polo.protocol.detection import MILLION, Reading
from polo.registry.pages.queries import Chain, ShardLine
from polo.registry.pages.render import figure, span
from polo.verifier import charts
from polo.verifier.charts import Chart, Point

MOST_TILES = 24
MOST_TIPS = 400
"""Shards that say more when pointed at; of a longer chain the newest."""

_UNITS = ((7200, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))


@dataclass(frozen=True)
class Plot:
    """A chart with its words."""

    name: str
    words: str
    drawing: Markup


def status_of(chain: Chain, line: ShardLine) -> Status:
    """How a shard stands: its mark was read here, or is claimed, or an answer is missing."""
    if not line.receipted:
        return Status.UNDECIDED
    if line.read is None or line.reading is None:
        return Status.NOTE
    needed = chain.record.terms.thresholds
    passed = _passes(line.reading, needed.verify, needed.log2_p)
    return Status.PASSED if passed else Status.FAILED


@functools.lru_cache(1024)
def _passes(reading: Reading, eta: int, log2_p: int) -> bool:
    """Kept, since the readings of a chain are mostly the same few."""
    return reading.passes(eta, log2_p)


def standing(chain: Chain, line: ShardLine) -> str:
    """The same, in words."""
    if line.number == 0:
        return "the start of the chain"
    return {
        Status.UNDECIDED: "no receipt yet: waiting for an answer",
        Status.NOTE: "receipt given; the mark was not read here",
        Status.PASSED: "receipt given; mark read from the opening",
        Status.FAILED: "the mark in the opening is too weak",
    }[status_of(chain, line)]


def tiles(chain: Chain) -> list[Markup]:
    """The checkpoints in a row; of a long chain the start and the newest."""
    lines = list(chain.lines)
    gap = len(lines) > MOST_TILES
    shown = [lines[0], *lines[1 - MOST_TILES :]] if gap else lines
    found = [_tile(chain, line, last=line is lines[-1]) for line in shown]
    if gap:
        left = counted(len(lines) - len(shown), "checkpoint")
        found.insert(1, charts.tile("", "", None, f"{left} in between"))
    return [Markup(item) for item in found]  # noqa: S704 (built by charts.tag, which escapes)


def _tile(chain: Chain, line: ShardLine, *, last: bool) -> charts.Markup:
    if line.reading is None:
        return charts.tile("0", "start", None, _start_tip(line), last=last)
    below = f"η {figure(line.reading.eta, 2)}"
    status = status_of(chain, line)
    # A claim is drawn as undecided: the tile has no shape for what nobody looked at.
    return charts.tile(str(line.number), below, status, tip(chain, line), last=last)


def _start_tip(line: ShardLine) -> str:
    return f"W_0: in the log at place {line.index}, before the first nonce existed"


def tip(chain: Chain, line: ShardLine) -> str:
    """What a reader sees who points at a shard."""
    if line.reading is None:
        return _start_tip(line)
    words = [
        f"shard {line.number}: η {figure(line.reading.eta)}, "
        f"{line.reading.matches} of {line.bits} bits, log2 p {figure(line.reading.log2_p, 1)}",
        f"{chain.metric} {figure(line.metric(chain.metric))}",
        f"place {line.index} in the log, {span(line.seconds)} after the one before",
        standing(chain, line),
    ]
    return "; ".join(words)


def plots(chain: Chain) -> Iterator[Plot]:
    """Detection rate, metric and pace, by shard."""
    lines = chain.shards
    if not lines:
        return
    for at, (name, words, chart) in enumerate(
        (_rates(chain, lines), _metrics(chain, lines), _pace(chain, lines))
    ):
        drawing = Markup(charts.draw(chart, f"plot-{at}"))  # noqa: S704 (escaped by charts.tag)
        yield Plot(name, words, drawing)


def _points(
    chain: Chain, lines: Sequence[ShardLine], values: Sequence[float | None], *, judged: bool
) -> list[Point]:
    newest = lines[-1].number
    return [
        Point(
            line.number,
            value,
            status_of(chain, line) if judged else Status.NOTE,
            tip(chain, line) if line.number > newest - MOST_TIPS else "",
        )
        for line, value in zip(lines, values, strict=True)
    ]


def _rates(chain: Chain, lines: Sequence[ShardLine]) -> tuple[str, str, Chart]:
    needed = chain.record.terms.thresholds.verify / MILLION
    values = [line.reading.eta if line.reading else None for line in lines]
    chart = Chart(
        "Detection rate η of each shard's mark",
        _points(chain, lines, values, judged=True),
        threshold=needed,
        limit=f"needed: {needed:g}",
        within=(1.0,),
    )
    return "η", "Share of the mark's bits that read right; luck gives 0.5.", chart


def _metrics(chain: Chain, lines: Sequence[ShardLine]) -> tuple[str, str, Chart]:
    task = chain.record.terms.task
    values = [line.metric(chain.metric) for line in lines]
    floors = {line.number: task.floor_of(line.number) / MILLION for line in lines}
    chart = Chart(
        f"{chain.metric} of each sealed checkpoint, as the prover measured it",
        _points(chain, lines, values, judged=False),
        floor=floors if task.floor else {},
        limit="the terms' floor",
    )
    return chain.metric, "Measured by the prover; a verification measures it again.", chart


def _pace(chain: Chain, lines: Sequence[ShardLine]) -> tuple[str, str, Chart]:
    longest = max((line.seconds or 0 for line in lines), default=0)
    size, unit = next((size, unit) for least, size, unit in _UNITS if longest >= least)
    values = [None if line.seconds is None else line.seconds / size for line in lines]
    chart = Chart(
        f"Time between commitments, in {unit}",
        _points(chain, lines, values, judged=False),
        within=(0.0,),
    )
    return "Pace", f"Time since the commitment before, in {unit}, by the registry’s clock.", chart
