"""Drawings with powers of ten on both axes, as SVG."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WIDTH, _LEFT, _RIGHT, _BELOW, _ABOVE = 560, 64, 40, 44, 16
_PANEL, _ROW = 240, 20
_COLOURS = ("#2a6fb0", "#c4581c", "#3d8b3d", "#8250a8")

Points = Sequence[tuple[int, float]]
"""What was counted, and how long it took."""


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: What they are; with several series it stands in a legend.
        points: The points, from left to right.
        each: Draw a line of so much for every one that was counted; None for none.
    """

    name: str
    points: Points
    each: float | None = None


def drawing(title: str, series: Sequence[Series], *, across: str, unit: str) -> str:
    """The series over each other.

    Args:
        title: What the drawing shows.
        series: At most four.
        across: What is counted.
        unit: Unit of the other axis.
    """
    legend = -(-len(series) // 2) * _ROW if len(series) > 1 else 0
    scale = _Scale([point for one in series for point in one.points], legend + _ABOVE)
    height = scale.above + _PANEL + _BELOW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#555">',
        f"<title>{title}</title>",
        *(_legend(series) if legend else ()),
        *scale.rules(unit),
    ]
    for one, colour in zip(series, _COLOURS, strict=False):
        lines += scale.drawn(one, colour)
    for counted in sorted({counted for one in series for counted, _ in one.points}):
        x, _ = scale.at(counted, 1)
        lines.append(_text(x, height - 22, f"{counted:,}"))
    lines.append(_text(_WIDTH / 2, height - 6, across))
    return "\n".join([*lines, "</svg>"]) + "\n"


class _Scale:
    """Where a point is drawn."""

    def __init__(self, points: Points, above: int) -> None:
        powers = [math.log10(value) for _, value in points]
        self.above = above
        self.first, self.last = min(points)[0], max(points)[0]
        self.bottom, self.top = math.floor(min(powers)), math.ceil(max(powers))

    def at(self, counted: float, value: float) -> tuple[float, float]:
        across = math.log10(counted / self.first) / math.log10(self.last / self.first)
        up = (math.log10(value) - self.bottom) / (self.top - self.bottom)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), self.above + (1 - up) * _PANEL

    def rules(self, unit: str) -> Iterator[str]:
        """A line for every power of ten."""
        for power in range(self.bottom, self.top + 1):
            left, y = self.at(self.first, 10.0**power)
            right, _ = self.at(self.last, 10.0**power)
            yield f'<path d="M{left:.0f} {y:.0f}H{right:.0f}" stroke="#ddd"/>'
            yield _text(left - 8, y + 4, f"{10.0**power:g} {unit}", "end")

    def drawn(self, series: Series, colour: str) -> Iterator[str]:
        """The points of a series, and its line."""
        if series.each is not None:
            first = max(self.first, 10.0**self.bottom / series.each)
            ends = [(first, series.each * first), (self.last, series.each * self.last)]
            yield f'<path d="{self._way(ends)}" stroke="#999" stroke-dasharray="4 4"/>'
        else:
            yield f'<path d="{self._way(series.points)}" stroke="{colour}" fill="none"/>'
        for point in series.points:
            x, y = self.at(*point)
            yield f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{colour}"/>'

    def _way(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in (self.at(*point) for point in points))


def _legend(series: Sequence[Series]) -> Iterator[str]:
    for at, (one, colour) in enumerate(zip(series, _COLOURS, strict=False)):
        x, y = _LEFT + at % 2 * (_WIDTH - _LEFT) / 2, 14 + at // 2 * _ROW
        yield f'<circle cx="{x:.0f}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield _text(x + 10, y, one.name, "start")


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'
