"""The part of a report about the chain: charts shard by shard, and the chain itself, drawn."""

from collections.abc import Iterator, Sequence

from polo.checks import Check, Status
from polo.verifier import charts
from polo.verifier.charts import GLYPHS, Chart, Markup, Point, tag
from polo.verifier.findings import figure
from polo.verifier.rows import ShardRow, selected
from polo.verifier.verdict import Verdict

MOST_TILES = 24


def drawings(verdict: Verdict, rows: Sequence[ShardRow]) -> list[Markup]:
    """Charts of marks and accuracy, and the chain; nothing if no shard was looked at."""
    return [*_charts(verdict, rows), *_chain(verdict, rows)] if rows else []


def _charts(verdict: Verdict, rows: Sequence[ShardRow]) -> Iterator[Markup]:
    metric = str(verdict.facts.get("metric", "accuracy"))
    eta, chance = _limit(verdict, "eta_verify"), _limit(verdict, "log2_p_threshold")
    drawn = (
        ("η", "share of the mark’s bits that read right", _mark_chart(rows, "eta", eta)),
        (
            "log₂ p",
            "chance that unmarked weights read as well",
            _mark_chart(rows, "log2_p", chance),
        ),
        (
            metric.capitalize(),
            "measured here, on the task’s public test",
            _accuracy_chart(rows, metric),
        ),
    )
    yield tag("h3", "Shard by shard")
    yield from charts.side_by_side(drawn, "chart")


def _limit(verdict: Verdict, name: str) -> float | None:
    try:
        return float(verdict.facts[name])
    except (KeyError, ValueError):
        return None


def _mark_chart(rows: Sequence[ShardRow], name: str, limit: float | None) -> Chart:
    points = [_point(row.shard, row.mark, name) for row in rows]
    words = "" if limit is None else f"{limit:g}".replace("-", "−")
    if name == "eta":
        return Chart(
            "Detection rate η by shard", points, limit, f"at least {words}", within=(0.5, 1)
        )
    return Chart("log2 p by shard", points, limit, f"at most {words}", at_most=True, within=(0,))


def _accuracy_chart(rows: Sequence[ShardRow], metric: str) -> Chart:
    floor = {row.shard: figure(row.accuracy, "floor") for row in rows}
    return Chart(
        f"{metric} by shard",
        [_point(row.shard, row.accuracy, "measured") for row in rows],
        limit="floor",
        floor={shard: value for shard, value in floor.items() if value is not None},
        claims=[_point(row.shard, row.claim, "claimed") for row in rows if row.claim],
    )


def _point(shard: int, check: Check | None, name: str) -> Point:
    if check is None:
        return Point(shard, None, Status.PASSED)
    tip = f"shard {shard}, {check.status.value}: {check.detail}"
    return Point(shard, figure(check, name), check.status, tip)


def _chain(verdict: Verdict, rows: Sequence[ShardRow]) -> Iterator[Markup]:
    tiles = [charts.tile("0", "start", None, "the weights before the first shard")]
    before = 0
    total = max(rows[-1].shard, int(verdict.facts.get("shards", 0)) if verdict.shown else 0)
    words = "not shown" if verdict.shown and len(rows) <= MOST_TILES else "more"
    for row in selected(rows, first=3, worst=6, last=9, most=MOST_TILES):
        tiles += _gap(before, row.shard, words)
        tiles.append(_tile(row, last=row.shard == total))
        before = row.shard
    tiles += _gap(before, total + 1, words)
    text = "Each mark is derived from the checkpoint before it, so the order cannot be changed."
    yield tag("h3", "The chain")
    yield tag("p", text, class_="quiet")
    yield tag("ol", *(tag("li", drawing) for drawing in tiles), class_="chain")


def _gap(before: int, shard: int, words: str) -> Iterator[Markup]:
    if missing := shard - before - 1:
        yield charts.tile("", f"{missing} {words}", None, f"shards {before + 1} to {shard - 1}")


def _tile(row: ShardRow, *, last: bool) -> Markup:
    eta = figure(row.mark, "eta")
    mark = row.mark.detail if row.mark else "the mark was not checked"
    status = row.status or Status.UNDECIDED
    said = "no η" if eta is None else f"η {eta:.3f}"
    if row.beyond:
        # The mark is fine: what is not must be named, or the figure would puzzle.
        said, mark = row.words, row.beyond.detail
    tip = f"shard {row.shard}, {status.value}: {mark}"
    below = f"{GLYPHS[status]} {said}"
    return charts.tile(str(row.shard), below, status, tip, last=last)
