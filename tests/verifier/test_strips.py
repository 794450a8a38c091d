"""The strip of a run: every place where it belongs, and small however long the run."""

import re
from html.parser import HTMLParser

import pytest

from polo.checks import Status
from polo.verifier.strips import LANES, MOST_MARKS, Mark, Strip, draw


class Drawing(HTMLParser):
    """The elements of a strip, with the text in each."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for at in self._open:
            self.elements[at][2].append(data)

    def of(self, kind: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of the marks of a kind, in lanes and plot."""
        return [
            (attributes, "".join(text))
            for _, attributes, text in self.elements
            if kind in (attributes.get("class") or "").split()
        ]


def drawing(*marks: Mark, segments: dict[int, int] | None = None, **options: object) -> Drawing:
    strip = Strip("a run", segments or {1: 10, 2: 30}, marks, **options)  # type: ignore[arg-type]
    return Drawing(draw(strip, "x"))


def middle(attributes: dict[str, str | None]) -> float:
    """Where a mark lies, in hundredths of the run."""
    if "x1" in attributes:
        assert attributes["x1"] == attributes["x2"]
        return float((attributes["x1"] or "").rstrip("%"))
    left, width = (float((attributes[key] or "").rstrip("%")) for key in ("x", "width"))
    return left + width / 2


def test_segments_lie_in_the_order_of_the_run() -> None:
    found = drawing(
        Mark(1, 0, Status.PASSED, always=True),
        Mark(2, 0, Status.PASSED),
        Mark(2, 29, Status.FAILED),
        Mark(1, 10, Status.PASSED, sealing=True),
        Mark(2, 3, Status.UNDECIDED),
    )
    for kind, place, tip in (
        ("always", 100 * 0.5 / 40, "shard 1, segment 0, passed"),
        ("drawn", 100 * 10.5 / 40, "shard 2, segment 0, passed"),
        ("wrong", 100 * 39.5 / 40, "shard 2, segment 29, failed"),
        ("sealing", 100 * 10 / 40, "shard 1, sealing, passed"),
        ("unclear", 100 * 13.5 / 40, "shard 2, segment 3, could not be decided"),
    ):
        ((attributes, text),) = found.of(kind)
        assert middle(attributes) == pytest.approx(place, abs=0.01)
        assert text == tip


def test_how_a_segment_ended_shows_without_colours() -> None:
    """Failed segments have a lane of their own, and its words say what it is."""
    found = drawing(Mark(1, 0, Status.PASSED), Mark(1, 4, Status.FAILED))
    words = ["".join(text) for tag, _, text in found.elements if tag == "text"]
    assert f"1 {LANES['wrong']}" in words
    assert f"1 {LANES['drawn']}" in words
    assert not any(LANES["always"] in text for text in words)
    heights = {attributes["y"] for kind in ("wrong", "drawn") for attributes, _ in found.of(kind)}
    assert len(heights) == 2
    ((_, text),) = [(a, "".join(t)) for tag, a, t in found.elements if tag == "desc"]
    assert "40 segments in 2 shards" in text
    assert "1 failed" in text


def test_a_failed_sealing_is_among_what_failed() -> None:
    found = drawing(Mark(1, 10, Status.FAILED, sealing=True))
    assert len(found.of("wrong")) == 1
    assert not found.of("sealing")


@pytest.mark.parametrize("asked", [52, 100_000])
def test_a_hundred_thousand_segments_stay_small(asked: int) -> None:
    segments = dict.fromkeys(range(1, 1001), 100)
    step = 100_000 // asked
    places = [divmod(at, 100) for at in range(0, 100_000, step)]
    marks = [
        Mark(shard + 1, at, Status.FAILED if at % 7 == 3 else Status.PASSED, move=1.0)
        for shard, at in places
    ]
    largest = dict.fromkeys(segments, 1.0)
    source = draw(Strip("a run", segments, marks, largest), "x")
    assert len(source) < 250_000
    found = Drawing(source)
    for kind in ("wrong", "drawn"):
        lane = [item for item in found.of(kind) if "at" in (item[0]["class"] or "").split()]
        assert 0 < len(lane) <= MOST_MARKS
        told = sum(int(m[1]) if (m := re.match(r"(\d+) from", text)) else 1 for _, text in lane)
        assert told == sum(mark.kind == kind for mark in marks)
    assert len(found.of("largest")) <= MOST_MARKS
    bands = len(found.of("odd")) + len(found.of("even"))
    assert bands <= MOST_MARKS


def test_moves_are_drawn_over_the_largest_on_record() -> None:
    marks = [
        Mark(1, 0, Status.PASSED, always=True, move=2.0),
        Mark(2, 5, Status.PASSED, move=1.0),
        Mark(2, 6, Status.FAILED),
    ]
    found = drawing(*marks, largest={1: 2.0, 2: 1.5})
    high, low = (float(attributes["y1"] or 0) for attributes, _ in found.of("largest"))
    assert high < low
    at = {a["x"]: float(a["y"] or 0) for tag, a, _ in found.elements if tag == "svg" and "x" in a}
    assert sorted(at.values()) == [high, pytest.approx(low + (low - high))]
    assert at.keys() == {"1.250%", "38.750%"}
    # Without a known move there is no plot, and the lanes move up.
    assert not drawing(Mark(1, 0, Status.FAILED), largest={1: 2.0}).of("largest")


def test_a_run_without_segments_does_not_break() -> None:
    assert "0 segments in 1 shard" in draw(Strip("a run", {1: 0}, ()), "x")
