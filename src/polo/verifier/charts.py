"""Small charts as inline SVG, one point per shard. Standard library only, no scripts.

A page includes `STYLE` once and then any number of `draw(chart, name)`. Colours are custom
properties with a light and a dark value; how a check ended shows in a point's shape as well.

Everything is built with `tag`, which escapes all text that is not markup already, because what
a chart says may come from a hostile prover.
"""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polo.checks import Status, plain

WIDTH, HEIGHT = 312, 204
MOST_POINTS = 1500
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 16, 30
_LANE = 24
_LETTER = 6.3
_VOID = frozenset({"meta", "br"})
GLYPHS = {Status.PASSED: "✓", Status.FAILED: "✕", Status.UNDECIDED: "?", Status.NOTE: "i"}
CLASSES = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.UNDECIDED: "open",
    Status.NOTE: "note",
}
"""How a status looks on a page: its glyph, and the end of its classes' names."""

_NODES = {Status.PASSED: "passed", Status.FAILED: "failed"}
_CALM = {Status.PASSED: "passed", Status.NOTE: "note"}

STYLE = """
:root {
  --polo-paper: #f5f6f8; --polo-card: #ffffff; --polo-ink: #1d2530; --polo-muted: #5a6573;
  --polo-rule: #e0e4e9; --polo-line: #b9c2cd; --polo-sunk: #f0f2f5;
  --polo-passed: #1a7f4b; --polo-failed: #c0352b; --polo-open: #46688c;
  --polo-passed-soft: #e7f4ec; --polo-failed-soft: #fbeceb; --polo-open-soft: #e9eff6;
  --polo-amber: #7d5200; --polo-amber-soft: #fff5dc; --polo-amber-line: #e3b341;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --polo-paper: #11151a; --polo-card: #191f27; --polo-ink: #e4e8ed; --polo-muted: #98a4b3;
    --polo-rule: #2b3440; --polo-line: #4a5666; --polo-sunk: #212932;
    --polo-passed: #56c48d; --polo-failed: #ff8078; --polo-open: #8fb4dc;
    --polo-passed-soft: #16291f; --polo-failed-soft: #331b1b; --polo-open-soft: #1b2836;
    --polo-amber: #f1c66c; --polo-amber-soft: #2a2312; --polo-amber-line: #856518;
  }
}
.polo-chart { display: block; width: 100%; height: auto; overflow: visible;
  color: var(--polo-ink); }
.polo-chart text { font-size: 11px; fill: var(--polo-muted); }
.polo-chart .grid { stroke: var(--polo-rule); stroke-width: 1; }
.polo-chart .axis { stroke: var(--polo-line); stroke-width: 1; }
.polo-chart .trace { fill: none; stroke: var(--polo-line); stroke-width: 1.5;
  stroke-linejoin: round; }
.polo-chart .threshold { fill: none; stroke: currentColor; stroke-width: 1.25;
  stroke-dasharray: 5 4; }
.polo-chart .limit { fill: var(--polo-ink); font-weight: 600; stroke: var(--polo-card);
  stroke-width: 4px; paint-order: stroke; stroke-linejoin: round; }
.polo-chart .passed { fill: var(--polo-passed); stroke: none; }
.polo-chart .note { fill: var(--polo-muted); stroke: none; }
.polo-chart .failed { fill: none; stroke: var(--polo-failed); stroke-width: 2.25;
  stroke-linecap: round; }
.polo-chart .open { fill: var(--polo-card); stroke: var(--polo-open); stroke-width: 2; }
.polo-chart .claim { fill: none; stroke: var(--polo-open); stroke-width: 1.25; }
.polo-chart .crowded .claim { stroke-width: 0.75; opacity: 0.5; }
.polo-chart .claim.failed, .polo-chart .crowded .claim.failed { opacity: 1;
  stroke: var(--polo-failed); stroke-width: 1.75; }
.polo-tile .node { fill: var(--polo-sunk); stroke: var(--polo-line); stroke-width: 1.5; }
.polo-tile .link { stroke: var(--polo-line); stroke-width: 1.5; }
.polo-tile .tip { fill: var(--polo-line); }
.polo-tile .start { stroke-dasharray: 3 3; fill: var(--polo-card); }
.polo-tile text { font-size: 10.5px; fill: var(--polo-muted); text-anchor: middle; }
.polo-tile .name { font-size: 14px; font-weight: 600; fill: var(--polo-ink); }
.polo-tile .passed { fill: var(--polo-passed-soft); stroke: var(--polo-passed); }
.polo-tile .failed { fill: var(--polo-failed-soft); stroke: var(--polo-failed);
  stroke-width: 2.5; }
.polo-tile .open { fill: var(--polo-open-soft); stroke: var(--polo-open);
  stroke-dasharray: 2 3; stroke-width: 2; }
"""
"""Palette and rules of all charts."""


class Markup(str):
    """HTML or SVG that is safe as it stands."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """An element. Children and attributes are escaped, unless a child is `Markup`.

    >>> tag("p", "1 < 2", class_="x")
    '<p class="x">1 &lt; 2</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(plain(_figure(value)))}"'
        for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Children one after the other, escaped unless they are `Markup`."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else html.escape(plain(child)) for child in children
        )
    )


def _figure(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Point:
    """One shard's value, how its check ended, and what a reader sees when pointing at it.

    Without a value, a failed or undecided point is drawn in a lane of its own below the axis.
    """

    shard: int
    value: float | None
    status: Status
    tip: str = ""


@dataclass(frozen=True)
class Chart:
    """What to draw.

    Attributes:
        title: What the values are.
        points: One per shard, oldest first.
        threshold: What every value is compared with, if it is one number.
        limit: Words that stand at the threshold or floor, if any.
        at_most: Whether values pass at or below the threshold, not at or above it.
        floor: What each shard's value is compared with, if it differs from shard to shard.
        claims: What the prover said the values are.
        within: Values that the axis shows in any case.
    """

    title: str
    points: Sequence[Point]
    threshold: float | None = None
    limit: str = ""
    at_most: bool = False
    floor: Mapping[int, float] = field(default_factory=dict)
    claims: Sequence[Point] = ()
    within: Sequence[float] = ()

    def values(self) -> list[float]:
        """Every number that the value axis must reach."""
        points = [point.value for point in (*self.points, *self.claims)]
        drawn = [*points, *self.floor.values(), self.threshold, *self.within]
        return [value for value in drawn if value is not None]


def draw(chart: Chart, name: str) -> Markup:
    """The chart as an SVG element.

    Args:
        chart: What to draw; values that are not finite count as missing.
        name: A word that no other chart of the page has.
    """
    chart = _tidied(chart)
    frame = _Frame.around(chart)
    known = sum(point.value is not None for point in chart.points)
    text = f"{known} of {len(chart.points)} shards have a value. {chart.limit}".strip()
    parts = [
        tag("title", chart.title, id=f"{name}-title"),
        tag("desc", text, id=f"{name}-desc"),
        *frame.axes(),
    ]
    thinned, stride = _thinned(chart.points)
    parts += frame.trace(thinned, stride)
    parts += frame.limits(chart)
    claims = [frame.claim(point) for point in _thinned(chart.claims)[0] if point.value is not None]
    parts.append(tag("g", *claims, class_="claims" if len(claims) <= 40 else "claims crowded"))
    parts += frame.marks(thinned)
    if not known and not frame.lane:
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(tag("text", "no values", x=middle, y=HEIGHT / 2, text_anchor="middle"))
    return _svg(*parts, name=name, class_="polo-chart", size=(WIDTH, HEIGHT + frame.lane))


def side_by_side(drawn: Sequence[tuple[str, str, Chart]], name: str) -> Iterator[Markup]:
    """Charts beside each other, with what their shapes mean.

    Args:
        drawn: Of each chart its name, what it shows, and the chart.
        name: A word that no other row of charts of the page has.
    """
    figures = (
        tag("figure", tag("figcaption", tag("b", short), words), draw(chart, f"{name}-{at}"))
        for at, (short, words, chart) in enumerate(drawn)
    )
    yield legend(*(chart for *_, chart in drawn))
    yield tag("div", *figures, class_="charts")


def legend(*drawn: Chart) -> Markup:
    """What the shapes in these charts mean, for a line of HTML."""
    found = {point.status for chart in drawn for point in chart.points}
    claims = {point.status for chart in drawn for point in chart.claims}
    rows = [(_mark(7, 7, 3.5, Status.PASSED, ""), "passed")] if Status.PASSED in found else []
    if Status.NOTE in found:
        rows.append((_mark(7, 7, 3.5, Status.NOTE, ""), "not judged by itself"))
    if Status.FAILED in found:
        rows.append((_mark(7, 7, 4, Status.FAILED, ""), "failed"))
    if Status.UNDECIDED in found:
        rows.append((_mark(7, 7, 4, Status.UNDECIDED, ""), "could not be decided"))
    if any(chart.threshold is not None or chart.floor for chart in drawn):
        rows.append((tag("line", class_="threshold", x1=0, x2=14, y1=7, y2=7), "what is needed"))
    if claims:
        rows.append((_claim(7, 7, 5, Status.PASSED, ""), "the prover’s own figure"))
    if Status.FAILED in claims:
        rows.append((_claim(7, 7, 5, Status.FAILED, ""), "the prover’s own figure, disagreeing"))
    keys = (
        tag(
            "li",
            tag("svg", shape, class_="polo-chart", viewBox="0 0 14 14", aria_hidden="true"),
            words,
        )
        for shape, words in rows
    )
    return tag("ul", *keys, class_="legend")


def tile(name: str, below: str, status: Status | None, tip: str, *, last: bool = False) -> Markup:
    """One checkpoint of a drawn chain, with the link that leads into it.

    Tiles stand side by side and wrap; their links meet at the edges.

    Args:
        name: The checkpoint's number, or empty for a gap.
        below: A short line under it.
        status: How its shard's checks ended; None for the start or a gap.
        tip: What a reader sees when pointing at it.
        last: Whether the chain ends here.
    """
    parts = [tag("title", tip)]
    if name:
        start = 46 if name == "0" else 0
        parts.append(tag("line", class_="link", x1=start, x2=46 if last else 92, y1=26, y2=26))
        if not start:
            parts.append(tag("path", class_="tip", d="M12 21l8 5l-8 5z"))
        shape = "start" if status is None else _NODES.get(status, "open")
        parts.append(tag("rect", class_=f"node {shape}", x=20, y=6, width=52, height=40, rx=9))
        index = tag("tspan", name, dy=4, font_size="9.5px")
        parts.append(tag("text", "W", index, x=46, y=30, class_="name"))
    else:
        parts.append(tag("text", "· · ·", x=46, y=31, class_="name"))
    parts.append(tag("text", below, x=46, y=62))
    return tag("svg", *parts, class_="polo-tile", viewBox="0 0 92 70", role="img")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that enclose a range.

    >>> ticks(0.52, 0.98)
    [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    >>> ticks(-2048, 0)
    [-2500.0, -2000.0, -1500.0, -1000.0, -500.0, 0.0]
    """
    step = _step((high - low) / about)
    # A hair of slack, so that 0.7 / 0.1 counts as 7.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(number * step, digits) + 0.0 for number in range(first, last + 1)]


def shard_ticks(first: int, last: int) -> list[int]:
    """Shard numbers to write under an axis.

    >>> shard_ticks(1, 6), shard_ticks(1, 50)
    ([1, 2, 3, 4, 5, 6], [1, 10, 20, 30, 40, 50])
    """
    step = max(1, round(_step((last - first) / 8 or 1)))
    found = [number for number in range(first, last + 1) if number % step == 0]
    return [first, *found] if step >= 5 and first not in found else found


def _step(raw: float) -> float:
    size = 10.0 ** math.floor(math.log10(raw))
    return next(size * factor for factor in (1, 2, 5, 10) if raw <= size * factor * (1 + 1e-9))


def tick_text(value: float, step: float) -> str:
    """A number of an axis, with as many digits as its steps need."""
    if step < 1e-6 or abs(value) >= 1e7:
        return f"{value:.3g}".replace("-", "−")
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{digits}f}".replace("-", "−")


def _tidied(chart: Chart) -> Chart:
    """The chart with what is not finite taken for missing."""

    def known(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return replace(
        chart,
        points=[replace(point, value=known(point.value)) for point in chart.points],
        claims=[replace(point, value=known(point.value)) for point in chart.claims],
        floor={at: value for at, value in chart.floor.items() if math.isfinite(value)},
        threshold=known(chart.threshold),
    )


def _thinned(points: Sequence[Point]) -> tuple[list[Point], int]:
    """At most a few thousand points, and the longest step between neighbours.

    Of each run of shards the lowest, the highest and the first that did not pass are kept: the
    picture stays the same, and the page stays light.
    """
    if len(points) <= MOST_POINTS:
        return list(points), 1
    size = math.ceil(3 * len(points) / MOST_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        run = points[start : start + size]
        by_value = sorted((p for p in run if p.value is not None), key=lambda p: p.value or 0.0)
        not_passed = [point for point in run if point.status not in _CALM]
        chosen = {p.shard: p for p in (*by_value[:1], *by_value[-1:], *not_passed[:1])}
        kept += [chosen[shard] for shard in sorted(chosen)]
    return kept, 2 * size


@dataclass(frozen=True)
class _Frame:
    """Where shards and values lie on the drawing."""

    first: int
    last: int
    ticks: Sequence[float]
    radius: float
    lane: int

    @classmethod
    def around(cls, chart: Chart) -> "_Frame":
        shards = [point.shard for point in chart.points] or [1]
        values = chart.values() or [0.0, 1.0]
        low, high = min(values), max(values)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            around = max(abs(low) * 0.1, 0.1)
            low, high = low - around, high + around
        count = max(shards) - min(shards) + 1
        radius = 3.5 if count <= 40 else 2.5 if count <= 120 else 1.5
        lane = any(p.value is None and p.status not in _CALM for p in chart.points)
        return cls(min(shards), max(shards), ticks(low, high), radius, _LANE if lane else 0)

    def x(self, shard: float) -> float:
        slots = self.last - self.first + 1
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (shard - self.first + 0.5) / slots

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    def axes(self) -> Iterator[Markup]:
        """Lines and numbers of both axes."""
        step = self.ticks[1] - self.ticks[0]
        base, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        for value in self.ticks:
            y = self.y(value)
            yield tag("line", class_="grid", x1=_LEFT, x2=right, y1=y, y2=y)
            text = tick_text(value, step)
            yield tag("text", text, x=_LEFT - 8, y=y + 4, text_anchor="end")
        yield tag("line", class_="axis", x1=_LEFT, x2=right, y1=base, y2=base)
        for shard in shard_ticks(self.first, self.last):
            x, y = self.x(shard), base + self.lane
            yield tag("line", class_="axis", x1=x, x2=x, y1=y, y2=y + 4)
            yield tag("text", str(shard), x=x, y=y + 18, text_anchor="middle")
        yield tag("text", "shard", x=_LEFT - 8, y=base + self.lane + 18, text_anchor="end")
        if self.lane:
            yield tag("line", class_="axis", x1=_LEFT, x2=right, y1=base + _LANE, y2=base + _LANE)
            yield tag("text", "none", x=_LEFT - 8, y=base + 18, text_anchor="end")

    def trace(self, points: Sequence[Point], stride: int) -> Iterator[Markup]:
        """The line through neighbouring values; it breaks where one is missing."""
        run: list[tuple[int, float]] = []
        for point in [*points, Point(self.last + 2 * stride + 1, None, Status.PASSED)]:
            if run and (point.value is None or point.shard - run[-1][0] > stride):
                if len(run) > 1:
                    path = " ".join(f"{self.x(s):.2f},{self.y(v):.2f}" for s, v in run)
                    yield tag("polyline", class_="trace", points=path)
                run = []
            if point.value is not None:
                run.append((point.shard, point.value))

    def limits(self, chart: Chart) -> Iterator[Markup]:
        """Threshold or floor, with its words."""
        if chart.threshold is not None:
            y = self.y(chart.threshold)
            yield tag("line", class_="threshold", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y)
            lines = [y]
        elif chart.floor:
            yield tag("path", class_="threshold floor", d=self._stairs(chart.floor))
            left = WIDTH - _RIGHT - _LETTER * len(chart.limit)
            near = [shard for shard in chart.floor if self.x(shard + 0.5) >= left]
            lines = [self.y(chart.floor[shard]) for shard in near or [max(chart.floor)]]
        else:
            return
        if not chart.limit:
            return
        # The words go to the side where values fail, which is mostly empty, and past all the
        # steps of a floor that they would cross.
        lowest, highest = max(lines), min(lines)
        above = highest - _TOP > 12 if chart.at_most else HEIGHT - _BOTTOM - lowest < 18
        y = highest - 6 if above else lowest + 14
        yield tag("text", chart.limit, class_="limit", x=WIDTH - _RIGHT, y=y, text_anchor="end")

    def _stairs(self, floor: Mapping[int, float]) -> str:
        """A path over the shards whose floor is known; it breaks where one is not."""
        path = ""
        for shard, value in sorted(floor.items()):
            alone = shard - 1 not in floor and shard + 1 not in floor
            # A shard that stands alone gets a line long enough to be seen.
            half = max(self.x(1.5) - self.x(1), 12 if alone else 0)
            y, right = f"{self.y(value):.2f}", min(self.x(shard) + half, WIDTH - _RIGHT)
            if shard - 1 in floor:
                path += f"V{y}H{right:.2f}"
            else:
                path += f"M{max(self.x(shard) - half, _LEFT):.2f} {y}H{right:.2f}"
        return path

    def marks(self, points: Sequence[Point]) -> Iterator[Markup]:
        """One shape per value, those that did not pass on top."""
        lane = HEIGHT - _BOTTOM + _LANE / 2 + 2
        for point in sorted(points, key=lambda p: p.status not in _CALM):
            if point.value is None and point.status in _CALM:
                continue
            y = lane if point.value is None else self.y(point.value)
            radius = self.radius if point.status in _CALM else max(self.radius, 2.5) + 1
            yield _mark(self.x(point.shard), y, radius, point.status, point.tip)

    def claim(self, point: Point) -> Markup:
        """What the prover said."""
        radius = self.radius + (2.5 if self.radius > 3 else 1.25)
        y = self.y(point.value or 0.0)
        return _claim(self.x(point.shard), y, radius, point.status, point.tip)


def _svg(*parts: Markup, name: str, class_: str, size: tuple[int, int]) -> Markup:
    return tag(
        "svg",
        *parts,
        class_=class_,
        viewBox=f"0 0 {size[0]} {size[1]}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def _mark(x: float, y: float, radius: float, status: Status, tip: str) -> Markup:
    """A disc, a cross, or a hollow diamond; a note's disc is grey."""
    inside = [tag("title", tip)] if tip else []
    if status in _CALM:
        return tag("circle", *inside, class_=f"mark {_CALM[status]}", cx=x, cy=y, r=radius)
    r = radius
    if status == Status.FAILED:
        path = f"M{x - r:.2f} {y - r:.2f}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
        return tag("path", *inside, class_="mark failed", d=path)
    r += 0.75
    path = f"M{x:.2f} {y - r:.2f}l{r:g} {r:g}l{-r:g} {r:g}l{-r:g} {-r:g}z"
    return tag("path", *inside, class_="mark open", d=path)


def _claim(x: float, y: float, radius: float, status: Status, tip: str) -> Markup:
    """A ring, or a square where the prover's figure disagrees."""
    inside = [tag("title", tip)] if tip else []
    if status != Status.FAILED:
        return tag("circle", *inside, class_="claim", cx=x, cy=y, r=radius)
    side = 2 * radius
    return tag(
        "rect", *inside, class_="claim failed", x=x - radius, y=y - radius, width=side, height=side
    )
