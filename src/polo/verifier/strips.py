"""A whole run as one strip, in inline SVG: which segments were run again, and how far they moved.

Places along the run are percentages and everything else is pixels, so that words and marks keep
their size on a phone. However many segments a run has, at most a few hundred marks a lane are
drawn: neighbours share one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polo.checks import Status, counted
from polo.verifier.charts import Markup, shard_ticks, tag, tick_text, ticks

MOST_MARKS = 240
_BROAD = 120
_PLOT, _LANE, _WORDS, _AXIS = 132, 37, 16, 36

STYLE = """
.polo-strip { display: block; width: 100%; overflow: visible; color: var(--polo-ink); }
.polo-strip svg { overflow: visible; }
.polo-strip text { font-size: 12px; fill: var(--polo-muted); }
.polo-strip .grid { stroke: var(--polo-rule); stroke-width: 1; }
.polo-strip .words { stroke: var(--polo-card); stroke-width: 4px; paint-order: stroke;
  stroke-linejoin: round; }
.polo-strip .lane { fill: var(--polo-sunk); }
.polo-strip .odd { fill: var(--polo-line); } .polo-strip .even { fill: var(--polo-rule); }
.polo-strip .largest { stroke: currentColor; stroke-width: 1.25; stroke-dasharray: 5 4; }
.polo-strip .at { stroke-width: 2.5px; }
.polo-strip .drawn { stroke: var(--polo-passed); fill: var(--polo-passed); }
.polo-strip .always { stroke: var(--polo-open); fill: var(--polo-open); }
.polo-strip .sealing { stroke: var(--polo-muted); fill: var(--polo-muted); }
.polo-strip .unclear { stroke: var(--polo-amber-line); fill: var(--polo-amber-line); }
.polo-strip .wrong { stroke: var(--polo-failed); fill: var(--polo-failed); }
.polo-strip .mark { stroke: none; }
"""
"""Rules of strips; the palette is that of `charts.STYLE`."""


@dataclass(frozen=True)
class Mark:
    """One segment or sealing that was run again.

    Attributes:
        shard: Its shard.
        segment: Its number in the shard; the number of segments for the sealing.
        status: How it ended.
        always: Whether every challenge asks for it.
        move: How far it moved the weights, where that is known.
        sealing: Whether it is a sealing.
    """

    shard: int
    segment: int
    status: Status
    always: bool = False
    move: float | None = None
    sealing: bool = False

    def __str__(self) -> str:
        what = "sealing" if self.sealing else f"segment {self.segment}"
        return f"shard {self.shard}, {what}"

    @property
    def kind(self) -> str:
        """The lane it lies in."""
        if self.status is Status.FAILED:
            return "wrong"
        if self.status is not Status.PASSED:
            return "unclear"
        if self.sealing:
            return "sealing"
        return "always" if self.always else "drawn"


LANES = {
    "wrong": "failed: not as recorded, or not shown",
    "unclear": "undecided",
    "always": "in any case: the first, the largest moves",
    "drawn": "drawn",
    "sealing": "sealings",
}


@dataclass(frozen=True)
class Strip:
    """What to draw.

    Attributes:
        title: What it is.
        segments: How many segments each shard has, oldest first.
        marks: What was run again.
        largest: The largest move on record in each shard.
    """

    title: str
    segments: Mapping[int, int]
    marks: Sequence[Mark]
    largest: Mapping[int, float] = field(default_factory=dict)


def draw(strip: Strip, name: str) -> Markup:
    """The strip as an SVG element.

    Args:
        strip: What to draw; its marks lie in shards that it has.
        name: A word that no other drawing of the page has.
    """
    run = _Run(strip)
    lanes = {kind: [m for m in strip.marks if m.kind == kind] for kind in LANES}
    lanes = {kind: marks for kind, marks in lanes.items() if marks}
    plotted = any(mark.move is not None for mark in strip.marks)
    y = _PLOT + 20 if plotted else 0
    parts = list(run.plot()) if plotted else []
    for kind, marks in lanes.items():
        parts += run.lane(kind, marks, y)
        y += _LANE
    parts += run.axis(y)
    said = ", ".join(f"{len(marks)} {LANES[kind]}" for kind, marks in lanes.items())
    total = sum(strip.segments.values())
    words = f"{counted(total, 'segment')} in {counted(len(strip.segments), 'shard')}. {said}"
    return tag(
        "svg",
        tag("title", strip.title, id=f"{name}-title"),
        tag("desc", words, id=f"{name}-desc"),
        *parts,
        class_="polo-strip",
        height=y + _AXIS,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


class _Run:
    """Where the segments of a run lie."""

    def __init__(self, strip: Strip) -> None:
        self._strip = strip
        self._starts: dict[int, int] = {}
        self.total = 0
        for shard, count in strip.segments.items():
            self._starts[shard] = self.total
            self.total += count
        self.total = max(self.total, 1)

    def lane(self, kind: str, marks: Sequence[Mark], y: int) -> Iterator[Markup]:
        """One lane: its words, its ground, and a mark for each of its segments."""
        yield tag("text", f"{len(marks)} {LANES[kind]}", x=0, y=y + _WORDS - 4)
        top, bottom = y + _WORDS, y + _LANE - 7
        yield tag("rect", class_="lane", x=0, y=top, width="100%", height=bottom - top, rx=2)
        broad = self.total <= _BROAD and kind != "sealing"
        for group in self._binned(marks):
            tip = [tag("title", _tip(group))]
            at = self._place(group[0])
            if broad and not group[0].sealing:
                width = 100 / self.total
                x, size = f"{at - 0.42 * width:.3f}%", f"{0.84 * width:.3f}%"
                yield tag("rect", *tip, class_=f"mark {kind}", x=x, width=size, y=top,
                          height=bottom - top)  # fmt: skip
            else:
                x = f"{at:.3f}%"
                yield tag("line", *tip, class_=f"at {kind}", x1=x, x2=x, y1=top, y2=bottom)

    def plot(self) -> Iterator[Markup]:
        """How far the segments moved, over the largest move on record in each shard."""
        moved = [mark for mark in self._strip.marks if mark.move is not None]
        largest = self._strip.largest
        values = [*(mark.move or 0.0 for mark in moved), *largest.values(), 0.0]
        scale = ticks(0.0, max(values) or 1.0, 3)
        base, high = _PLOT, scale[-1]

        def y(value: float) -> float:
            return base - (_PLOT - 16) * value / high

        for value in scale:
            yield tag("line", class_="grid", x1=0, x2="100%", y1=y(value), y2=y(value))
        yield from self._stairs(y)
        for group in self._binned(moved):
            mark = max(group, key=lambda m: m.move or 0.0)
            glyph = _glyph(mark.kind, _tip(group), 3.5 if len(moved) <= _BROAD else 2)
            yield tag("svg", glyph, x=f"{self._place(mark):.3f}%", y=y(mark.move or 0.0))
        for value in scale[1:]:
            text = tick_text(value, scale[1] - scale[0])
            yield tag("text", text, class_="words", x="100%", y=y(value) - 4,
                      text_anchor="end")  # fmt: skip

    def _stairs(self, y: Callable[[float], float]) -> Iterator[Markup]:
        """A line for each shard, or for each run of neighbouring shards."""
        shards = [shard for shard in self._strip.segments if shard in self._strip.largest]
        size = -(-len(shards) // MOST_MARKS) or 1
        for at in range(0, len(shards), size):
            group = shards[at : at + size]
            top = max(self._strip.largest[shard] for shard in group)
            left = 100 * self._starts[group[0]] / self.total
            right = 100 * (self._starts[group[-1]] + self._strip.segments[group[-1]]) / self.total
            yield tag("line", class_="largest", x1=f"{left:.3f}%", x2=f"{right:.3f}%",
                      y1=y(top), y2=y(top))  # fmt: skip

    def axis(self, y: int) -> Iterator[Markup]:
        """The shards under the lanes, in turns lighter and darker."""
        shards = list(self._strip.segments)
        size = -(-len(shards) // MOST_MARKS) or 1
        for at, shard in enumerate(shards[::size]):
            last = shards[min((at + 1) * size, len(shards)) - 1]
            left = 100 * self._starts[shard] / self.total
            wide = 100 * (self._starts[last] + self._strip.segments[last]) / self.total - left
            tip = tag("title", f"shard {shard}, {counted(self._strip.segments[shard], 'segment')}")
            yield tag("rect", *([tip] if size == 1 else []), class_="odd" if at % 2 else "even",
                      x=f"{left:.3f}%", width=f"{wide:.3f}%", y=y, height=8)  # fmt: skip
        for shard in shard_ticks(shards[0], shards[-1]):
            if shard in self._starts:
                middle = self._starts[shard] + self._strip.segments[shard] / 2
                x = f"{100 * middle / self.total:.3f}%"
                yield tag("text", str(shard), x=x, y=y + 24, text_anchor="middle")

    def _place(self, mark: Mark) -> float:
        """Where a mark lies, in hundredths of the run."""
        within = mark.segment + (0.0 if mark.sealing else 0.5)
        return 100 * (self._starts[mark.shard] + within) / self.total

    def _binned(self, marks: Sequence[Mark]) -> list[list[Mark]]:
        """Marks that lie so near each other that one stands for all of them."""
        bins: dict[int, list[Mark]] = {}
        for mark in marks:
            bins.setdefault(int(self._place(mark) * MOST_MARKS / 100), []).append(mark)
        return list(bins.values())


def _glyph(kind: str, tip: str, radius: float) -> Markup:
    """A diamond for what every challenge asks for, a disc for the others."""
    if kind == "always":
        return tag("path", tag("title", tip), class_="mark always", d="M0 -5l5 5l-5 5l-5 -5z")
    return tag("circle", tag("title", tip), class_=f"mark {kind}", r=radius)


def _tip(marks: Sequence[Mark]) -> str:
    first, last = marks[0], marks[-1]
    if len(marks) == 1:
        return f"{first}, {first.status.value}"
    return f"{len(marks)} from {first} to {last}, {first.status.value}"
