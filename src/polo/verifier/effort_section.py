"""The figures and drawings of the levels of effort: progress and replay."""

from collections.abc import Iterator
from dataclasses import replace

from polo.checks import Check, Status, counted, probability
from polo.verifier import charts, strips
from polo.verifier.charts import CLASSES, GLYPHS, Chart, Markup, Point, tag
from polo.verifier.findings import Progressed, Replayed, figure
from polo.verifier.verdict import Verdict


def progress(verdict: Verdict) -> list[Markup]:
    """Figures and charts of level progress."""
    found = Progressed.of(verdict.checks)
    parts = tiles(_progress_tiles(found))
    if found.shards:
        parts.append(tag("h3", "Shard by shard"))
        parts += charts.side_by_side(list(_progress_charts(found)), "progress")
    return parts


def replay(verdict: Verdict) -> list[Markup]:
    """Figures and the strip of level replay."""
    found = Replayed.of(verdict.checks)
    parts = tiles(_replay_tiles(found))
    if found.grown:
        parts.append(tag("p", _GROWN, class_="quiet"))
        if found.grown[0] < found.grown[1]:
            parts.append(tag("p", _some_only(found, *found.grown), class_="amber"))
    if found.records and (found.segments or found.sealings):
        moved = any(figure(check, "move") is not None for check in found.segments)
        parts.append(tag("h3", "The run, from its first step to its last"))
        parts.append(tag("p", _STRIP + (_MOVES if moved else ""), class_="quiet"))
        parts.append(tag("figure", strips.draw(_strip(found), "replay-strip")))
    return parts


_GROWN = (
    "The registry drew these by its own randomness, shard by shard, when each was in its log and "
    "before its receipt. That they came out as recorded is its word."
)

_STRIP = "What was run again, shard by shard; numbers below are shards."
_MOVES = (
    " Above: how far each segment moved the weights; the dashed line is the largest move on "
    "record in its shard."
)


Tile = tuple[str, str, str, Status | None]
"""Label, figure, a line below, and how its check ended if the figure is one check's."""


def tiles(found: Iterator[Tile]) -> list[Markup]:
    """Figures beside each other; nothing where there are none."""
    items = []
    for label, value, below, status in found:
        mark = [tag("span", f" {GLYPHS[status]}", class_=f"is-{CLASSES[status]}")] if status else []
        items.append(
            tag("div", tag("dt", label), tag("dd", tag("b", value), *mark),
                tag("dd", below, class_="quiet"))
        )  # fmt: skip
    return [tag("dl", *items, class_="figures")] if items else []


def _some_only(found: Replayed, drawn: int, shards: int) -> str:
    """That not every shard was drawn from, and what that lets pass."""
    said = f"No step of {counted(shards - drawn, 'shard')} was run again"
    if found.whole is not None:
        chance = probability(found.whole)
        said += f": by the terms, one that was never trained escapes with probability {chance}"
    return f"{said}."


def _grown_tiles(found: Replayed, drawn: int, shards: int) -> Iterator[Tile]:
    run = figure(found.draw, "run") or 0
    rate = probability(figure(found.draw, "rate") or 0.0)
    yield "Shards drawn from", f"{drawn:,} of {shards:,}", f"each with probability {rate}", None
    below = "all as recorded, and the sealings with them"
    yield "Segments run again", f"{run:,.0f} of {found.total:,}", below, None
    if found.whole is not None:
        below = "probability that a shard without training is not caught"
        yield "A whole shard faked escapes", probability(found.whole), below, None
    if found.tenth is not None:
        below = "probability; of all shards, or of the segments of each"
        yield "A tenth faked escapes", probability(found.tenth), below, None
    if found.single is not None:
        below = "probability; the largest moves of a drawn shard cannot"
        yield "One segment faked escapes", probability(found.single), below, None


def _replay_tiles(found: Replayed) -> Iterator[Tile]:
    if found.grown:
        yield from _grown_tiles(found, *found.grown)
        return
    if not found.segments:
        if found.total:
            below = f"{counted(found.steps, 'step')} in all"
            yield "Segments on record", f"{found.total:,}", below, None
        return
    run, always = len(found.segments), sum(bool(figure(c, "always")) for c in found.segments)
    kinds = f"{run - always:,} drawn; {always} in any case: the first, the largest moves"
    yield "Segments asked for", f"{run:,} of {found.total:,}", kinds, None
    yield "Came out as recorded", f"{found.passed:,} of {run:,}", _exactly(found), None
    if found.sealings:
        good = sum(check.status is Status.PASSED for check in found.sealings)
        below = "finishing step and noise"
        yield "Sealings done again", f"{good} of {len(found.sealings)}", below, None
    if steps := figure(found.draw, "steps"):
        part = f"{steps / found.steps:.1%} of all" if found.steps else "of the whole run"
        yield "Steps run again", f"{steps:,.0f}", part, None
    if found.data and (shown := figure(found.data, "shown")):
        copies = figure(found.data, "repeated") or 0
        below = f"{copies:,.0f} of them copies of others" if copies else "none of them a copy"
        yield "Samples shown", f"{shown:,.0f}", below, found.data.status
    if found.tenth is not None:
        below = "probability that who faked a tenth is not caught"
        yield "A tenth faked escapes", probability(found.tenth), below, None
    if found.single is not None:
        below = "probability; the largest moves cannot"
        yield "One segment faked escapes", probability(found.single), below, None


def _exactly(found: Replayed) -> str:
    if not found.passed:
        return "none of them"
    if found.exact == found.passed:
        return "all of these to the bit"
    return f"{found.exact:,} to the bit, the others as close as honest repetitions"


def _strip(found: Replayed) -> strips.Strip:
    records = found.records
    counts = {shard: int(figure(check, "segments") or 0) for shard, check in records.items()}
    largest = {
        shard: value for shard, check in records.items() if (value := figure(check, "largest"))
    }
    marks = [
        strips.Mark(
            check.shard,
            int(figure(check, "segment") or 0),
            check.status,
            always=bool(figure(check, "always")),
            move=figure(check, "move"),
        )
        for check in found.segments
        if check.shard in counts
    ]
    marks += [
        strips.Mark(check.shard, counts[check.shard], check.status, sealing=True)
        for check in found.sealings
        if check.shard in counts
    ]
    return strips.Strip("Segments that were run again, over the whole run", counts, marks, largest)


def _progress_tiles(found: Progressed) -> Iterator[Tile]:
    slope, moved = found.whole.get("downhill"), found.whole.get("movement")
    path, loss = found.whole.get("path"), found.whole.get("loss")
    if (z := figure(slope, "z")) is not None and slope:
        below = f"at the beginning; at least {figure(slope, 'least'):g} asked, chance gives 0 ± 1"
        yield "Down the slope of held-out loss", f"z = {z:.1f}", below, slope.status
    first, last = figure(loss, "start"), figure(loss, "last")
    if loss and first is not None and last is not None:
        below = f"fell by {figure(loss, 'fall') or 0:.0%}; at least "
        below += f"{figure(loss, 'least') or 0:.0%} asked"
        yield "Held-out loss", f"{first:.3g} → {last:.3g}", below, loss.status
    if moved and (times := figure(moved, "moved")) is not None:
        below = f"the energy of the declared noise; at least {figure(moved, 'least'):g} asked"
        yield "Moves outside the marks", f"{times:.3g} ×", below, moved.status
    if path and (straight := figure(path, "straight")) is not None:
        below = f"1 is a straight line; below {figure(path, 'below'):g} asked"
        yield "Straightness of the path", f"{straight:.3f}", below, path.status
    elif path:
        yield "Straightness of the path", "not judged", "", None


def _progress_charts(found: Progressed) -> Iterator[tuple[str, str, Chart]]:
    slope, shards = found.whole.get("downhill"), found.shards
    least, early = figure(slope, "least"), int(figure(slope, "shards") or 0)
    asked = "" if least is None else f"; {least:g} asked at first"
    yield (
        "Downhill, z",
        f"how far updates point downhill{asked}",
        Chart(
            "Descent alignment z by shard",
            [_point(x, check, "z", slope if x <= early else None) for x, check in shards.items()],
            floor={} if least is None else {x: least for x in shards if x <= early},
            within=(0,),
        ),
    )
    most = _most_loss(found.whole.get("loss"))
    words = "" if most is None else f"; {most:.3g} or less asked"
    yield "Held-out loss", f"of each checkpoint{words}", _loss_chart(found)
    noise = {x: figure(check, "noise") for x, check in shards.items()}
    yield (
        "Moves outside the mark",
        "relative to the weights; dashed: noise alone",
        Chart(
            "Moves outside the mark by shard",
            [_point(x, check, "outside", None) for x, check in shards.items()],
            floor={x: value for x, value in noise.items() if value is not None},
            within=(0,),
        ),
    )


def _loss_chart(found: Progressed) -> Chart:
    """Losses, the start's first; the lowest is the one that is judged."""
    loss = found.whole.get("loss")
    points = [_point(x, check, "loss", None) for x, check in found.shards.items()]
    known = [point for point in points if point.value is not None]
    if loss and known:
        lowest = min(known, key=lambda point: point.value or 0.0)
        points[points.index(lowest)] = replace(lowest, status=loss.status)
    first = figure(loss, "start")
    if first is not None:
        points.insert(0, Point(0, first, Status.NOTE, f"start: {first:.4g}"))
    return Chart("Held-out loss by shard", points, _most_loss(loss), at_most=True, within=(0,))


def _most_loss(loss: Check | None) -> float | None:
    """What held-out loss had to fall to."""
    first, least = figure(loss, "start"), figure(loss, "least")
    return None if first is None or least is None else first * (1 - least)


def _point(shard: int, check: Check, name: str, judge: Check | None) -> Point:
    """One shard's value; judged only where a check of the whole run looks at this shard."""
    status = judge.status if judge else Status.NOTE
    return Point(shard, figure(check, name), status, f"shard {shard}: {check.detail}")
