"""Charts of recorded lines: what to draw, and where everything lies."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from polo.verifier.charts import tick_text, ticks

WIDTH, HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 44, 52
_LEGEND = 18
INK, MUTED, RULE = "#1d2530", "#56616f", "#d9dfe6"
COLOURS = (
    "#3f6288",
    "#b5541c",
    "#1a7f4b",
    "#7a4b94",
    "#8a5a00",
    "#56616f",
    "#a8324a",
    "#2f8f9d",
    "#111111",
)


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: What they are.
        points: Pairs of x and y; a y that is None leaves a gap.
        steps: Whether the value holds until the next point.
        dashed: Whether the line is dashed, as figures that are not ours are.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    steps: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over one axis.

    Attributes:
        title: What it shows.
        across: What lies along the horizontal axis.
        up: What lies along the vertical axis.
        series: The lines.
        limits: Heights of horizontal lines, by their words.
        sides: Places of vertical lines, which mark where something ended.
    """

    title: str
    across: str
    up: str
    series: Sequence[Series]
    limits: dict[str, float] = field(default_factory=dict)
    sides: Sequence[float] = ()

    def xs(self) -> list[float]:
        """Every place that the horizontal axis must reach."""
        return [x for one in self.series for x, y in one.points if y is not None] + [*self.sides]

    def ys(self) -> list[float]:
        """Every value that the vertical axis must reach."""
        found = [y for one in self.series for _, y in one.points if y is not None]
        return [y for y in (*found, *self.limits.values()) if math.isfinite(y)]


class Canvas(Protocol):
    """What a chart is drawn on."""

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float, dashed: bool
    ) -> None:
        """Draw a line through some points."""

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        """Draw a disc."""

    def text(self, x: float, y: float, words: str, *, size: int, colour: str, anchor: str) -> None:
        """Write words: from x on (`start`), around it (`middle`) or up to it (`end`)."""


def draw(chart: Chart, canvas: Canvas) -> None:
    """Draw a chart."""
    frame = _Frame.around(chart)
    canvas.text(_LEFT, 22, chart.title, size=15, colour=INK, anchor="start")
    frame.axes(chart, canvas)
    for place in chart.sides:
        x = frame.x(place)
        canvas.line([(x, _TOP), (x, frame.bottom)], RULE, 1, False)
    for words, height in chart.limits.items():
        y = frame.y(height)
        canvas.line([(_LEFT, y), (WIDTH - _RIGHT, y)], MUTED, 1, True)
        canvas.text(WIDTH - _RIGHT, y - 4, words, size=11, colour=MUTED, anchor="end")
    for at, one in enumerate(chart.series):
        frame.series(one, COLOURS[at % len(COLOURS)], canvas)
        y = HEIGHT + _LEGEND * at + 6
        canvas.line(
            [(_LEFT, y - 4), (_LEFT + 24, y - 4)], COLOURS[at % len(COLOURS)], 2, one.dashed
        )
        canvas.text(_LEFT + 32, y, one.name, size=12, colour=INK, anchor="start")


def height_of(chart: Chart) -> int:
    """Height of the picture, with a line of legend for each series."""
    return HEIGHT + _LEGEND * len(chart.series) + 8


@dataclass(frozen=True)
class _Frame:
    """The area that values are drawn in."""

    left: float
    right: float
    low: float
    high: float
    bottom: float = HEIGHT - _BOTTOM

    @classmethod
    def around(cls, chart: Chart) -> "_Frame":
        xs, ys = chart.xs() or [0.0, 1.0], chart.ys() or [0.0, 1.0]
        low, high = min(ys), max(ys)
        marks = ticks(low, high if high > low else low + 1)
        return cls(min(xs), max(max(xs), min(xs) + 1e-9), marks[0], marks[-1])

    def x(self, value: float) -> float:
        part = (value - self.left) / (self.right - self.left)
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - _TOP)

    def axes(self, chart: Chart, canvas: Canvas) -> None:
        heights, places = ticks(self.low, self.high), ticks(self.left, self.right)
        for value in heights:
            y = self.y(value)
            canvas.line([(_LEFT, y), (WIDTH - _RIGHT, y)], RULE, 1, False)
            words = tick_text(value, heights[1] - heights[0])
            canvas.text(_LEFT - 8, y + 4, words, size=11, colour=MUTED, anchor="end")
        for value in places:
            if self.left <= value <= self.right:
                words = tick_text(value, places[1] - places[0])
                place = self.x(value), self.bottom + 18
                canvas.text(*place, words, size=11, colour=MUTED, anchor="middle")
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        canvas.text(middle, HEIGHT - 14, chart.across, size=12, colour=MUTED, anchor="middle")
        canvas.text(_LEFT, _TOP - 6, chart.up, size=12, colour=MUTED, anchor="start")

    def series(self, one: Series, colour: str, canvas: Canvas) -> None:
        for run in _unbroken(one):
            places = [(self.x(x), self.y(y)) for x, y in run]
            canvas.line(_stepped(places) if one.steps else places, colour, 2, one.dashed)
            if len(places) <= 60 and not one.steps:
                for x, y in places:
                    canvas.dot(x, y, 2.5, colour)


def _unbroken(one: Series) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for x, y in one.points:
        if y is not None and math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _stepped(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found = list(places[:1])
    for x, y in places[1:]:
        found += [(x, found[-1][1]), (x, y)]
    return found
