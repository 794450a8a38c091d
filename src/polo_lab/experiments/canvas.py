"""Charts as files: SVG without scripts, and PNG."""

import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from polo.errors import MissingError
from polo.verifier.charts import Markup, tag
from polo_lab.experiments.chart import WIDTH, Chart, draw, height_of

_GROUND = "#ffffff"
_SANS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
_SCALE = 2
_SPELLED = {"η": "eta", "λ": "lambda", "σ": "sigma", "−": "-", "≥": ">=", "×": "x", "–": "-"}
"""Pillow's own font has Latin letters alone."""

_DASH, _GAP = 6.0, 4.0


class _Svg:
    def __init__(self) -> None:
        self.parts: list[Markup] = []

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float, dashed: bool
    ) -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        more = {"stroke_dasharray": f"{_DASH:g} {_GAP:g}"} if dashed else {}
        self.parts.append(
            tag("polyline", points=places, fill="none", stroke=colour, stroke_width=width, **more)
        )

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        self.parts.append(tag("circle", cx=x, cy=y, r=radius, fill=colour))

    def text(self, x: float, y: float, words: str, *, size: int, colour: str, anchor: str) -> None:
        self.parts.append(
            tag("text", words, x=x, y=y, font_size=size, fill=colour, text_anchor=anchor)
        )


class _Png:
    """A picture by Pillow, twice as fine as the SVG's units."""

    def __init__(self, width: int, height: int) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise MissingError(
                "figures as PNG need Pillow, which is not installed",
                advice="pip install 'polo-proof[lab]', or take --format svg, which needs nothing",
            ) from error
        self.image = Image.new("RGB", (_SCALE * width, _SCALE * height), _GROUND)
        self._draw = ImageDraw.Draw(self.image)
        self._font: Callable[[int], Any] = lambda size: ImageFont.load_default(_SCALE * size)

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float, dashed: bool
    ) -> None:
        pieces = _dashes(points) if dashed else [list(points)]
        for piece in pieces:
            places = [(_SCALE * x, _SCALE * y) for x, y in piece]
            self._draw.line(places, fill=colour, width=round(_SCALE * width), joint="curve")

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        box = [_SCALE * (x - radius), _SCALE * (y - radius)]
        box += [_SCALE * (x + radius), _SCALE * (y + radius)]
        self._draw.ellipse(box, fill=colour)

    def text(self, x: float, y: float, words: str, *, size: int, colour: str, anchor: str) -> None:
        place, font = (_SCALE * x, _SCALE * y), self._font(size)
        words = "".join(_SPELLED.get(letter, letter) for letter in words)
        self._draw.text(place, words, fill=colour, font=font, anchor=_ANCHORS[anchor])


def _svg(chart: Chart) -> bytes:
    canvas, height = _Svg(), height_of(chart)
    draw(chart, canvas)
    ground = tag("rect", width=WIDTH, height=height, fill=_GROUND)
    picture = tag(
        "svg", tag("title", chart.title), ground, *canvas.parts,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", role="img",
        font_family=_SANS,
    )  # fmt: skip
    return f"{picture}\n".encode()


def _png(chart: Chart) -> bytes:
    canvas, out = _Png(WIDTH, height_of(chart)), io.BytesIO()
    draw(chart, canvas)
    canvas.image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _dashes(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Straight pieces of a line with gaps between them; each stretch begins with a dash."""
    found = []
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        at = 0.0
        while at < length:
            ends = (at / length, min(at + _DASH, length) / length)
            found.append([(x0 + part * (x1 - x0), y0 + part * (y1 - y0)) for part in ends])
            at += _DASH + _GAP
    return found


FORMATS: dict[str, Callable[[Chart], bytes]] = {"svg": _svg, "png": _png}
"""How a chart is written."""
