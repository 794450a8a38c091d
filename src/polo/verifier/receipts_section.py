"""The figures and the drawing of level receipts."""

import datetime
import itertools
from collections.abc import Iterator, Mapping

from polo.checks import Status, counted
from polo.verifier import charts
from polo.verifier.charts import Chart, Markup, Point, tag
from polo.verifier.effort_section import Tile, tiles
from polo.verifier.findings import Logged, figure
from polo.verifier.verdict import Verdict

_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60))
_WORD = (
    "The dates are the registry's own word: no witness was asked to watch its log. It could show "
    "different logs to different people; polo log audit looks for that."
)


def drawings(verdict: Verdict) -> list[Markup]:
    """Figures and the chart of level receipts."""
    found = Logged.of(verdict.checks)
    parts = tiles(_tiles(found))
    if not found.witnessed:
        parts.append(tag("p", _WORD, class_="amber"))
    if len(found.receipts) > 1:
        parts.append(tag("h3", "When each shard was committed to"))
        parts += charts.side_by_side(list(_charts(found)), "receipts")
    return parts


def _tiles(found: Logged) -> Iterator[Tile]:
    times = [int(figure(check, "time") or 0) for check in found.receipts.values()]
    if not times:
        return
    places = [int(figure(check, "index") or 0) for check in found.receipts.values()]
    below = f"entries {min(places):,} to {max(places):,} of the log"
    yield "Receipts that hold", f"{len(times):,}", below, None
    yield "From", _day(min(times)), f"to {_day(max(times))} UTC", None
    gaps = [after - before for before, after in itertools.pairwise(times)]
    if gaps:
        yield "Shortest between two", f"{min(gaps):,} s", f"longest {max(gaps):,} s", None
    witness = found.witness
    if witness and (quorum := figure(witness, "quorum")):
        total, lag = (figure(witness, name) or 0 for name in ("witnesses", "lag"))
        below = f"dates can be off by {lag:,.0f} s at most"
        yield "Witnesses of every entry", f"{quorum:.0f} of {total:.0f}", below, witness.status
    elif not found.witnessed:
        yield "Witnesses", "none", "dates are the registry's word", None


def _day(seconds: int) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return counted(seconds, "second")
    return f"{moment:%Y-%m-%d %H:%M}"


def _charts(found: Logged) -> Iterator[tuple[str, str, Chart]]:
    times = {shard: figure(check, "time") or 0.0 for shard, check in found.receipts.items()}
    first = min(times.values())
    since = {shard: time - first for shard, time in times.items()}
    unit, values = _scaled(since)
    title = f"{unit.capitalize()} since the first receipt"
    yield title, "by the registry's clock; 0 is the start", _chart(title, values, found)
    apart = {
        shard: times[shard] - times[before] for before, shard in itertools.pairwise(sorted(times))
    }
    fastest = figure(found.dates, "fastest") or 0.0
    unit, values = _scaled({**apart, -1: fastest})
    least = values.pop(-1) or None
    title = f"{unit.capitalize()} since the receipt before"
    asked = "" if least is None else f"; {least:g} asked at least"
    yield title, f"how far shards are apart{asked}", _chart(title, values, found, least)


def _chart(
    title: str, values: Mapping[int, float], found: Logged, least: float | None = None
) -> Chart:
    points = [
        Point(shard, value, Status.PASSED, found.receipts[shard].detail)
        for shard, value in values.items()
    ]
    return Chart(f"{title}, by shard", points, least, within=(0,))


def _scaled(seconds: Mapping[int, float]) -> tuple[str, dict[int, float]]:
    """Seconds in the largest unit in which the longest is two or more."""
    longest = max(seconds.values())
    unit, length = next(
        ((unit, length) for unit, length in _UNITS if longest >= 2 * length), ("seconds", 1)
    )
    return unit, {shard: value / length for shard, value in seconds.items()}
