"""Charts: one mark per value, thresholds where they belong, nothing that acts."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polo.checks import Status, plain
from polo.verifier import charts
from polo.verifier.charts import Chart, Point, draw, tag, ticks

EVIL = '</title></svg><script>alert(1)</script><img src=x onerror="alert(1)">'


def points(values: list[float | None], status: Status = Status.PASSED) -> list[Point]:
    return [Point(at, value, status, f"shard {at}") for at, value in enumerate(values, 1)]


def parsed(chart: Chart) -> ET.Element:
    return ET.fromstring(draw(chart, "one"))


def having(root: ET.Element, word: str) -> list[ET.Element]:
    return [node for node in root.iter() if word in node.get("class", "").split()]


def y_of(root: ET.Element, label: str) -> float:
    """Height of the tick that says `label`."""
    found = [node for node in root.iter("text") if node.text == label]
    return float(found[0].get("y", "nan")) - 4


def numbers(root: ET.Element) -> list[float]:
    names = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy")
    return [float(node.get(name, "0")) for node in root.iter() for name in names]


@pytest.mark.parametrize("count", [1, 6, 50, 1000])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2048.0, 0.0), (0.97, 1.0)])
def test_one_mark_per_value_inside_the_drawing(count: int, low: float, high: float) -> None:
    values: list[float | None] = [low + (high - low) * at / count for at in range(count)]
    root = parsed(Chart("η", points(values)))
    marks = having(root, "mark")
    assert len(marks) == count
    left, top, width, height = map(float, root.get("viewBox", "").split())
    assert (left, top) == (0, 0)
    for mark in marks:
        assert 0 < float(mark.get("cx", "nan")) < width
        assert 0 < float(mark.get("cy", "nan")) < height
    heights = [float(mark.get("cy", "nan")) for mark in marks]
    assert heights == sorted(heights, reverse=True)  # larger values stand higher


@pytest.mark.parametrize("value", [0.0, 1.0, -2048.0, 1e-12, 1e15])
@pytest.mark.parametrize("count", [1, 7])
def test_equal_values_still_make_a_chart(value: float, count: int) -> None:
    root = parsed(Chart("η", points([value] * count)))
    assert len(having(root, "mark")) == count
    assert len({mark.get("cy") for mark in having(root, "mark")}) == 1
    assert all(math.isfinite(number) for number in numbers(root))


def test_no_values_at_all() -> None:
    for chart in (Chart("η", []), Chart("η", points([None, None]))):
        root = parsed(chart)
        assert not having(root, "mark")
        assert "no values" in [node.text for node in root.iter("text")]


def test_the_line_breaks_where_a_value_is_missing() -> None:
    root = parsed(Chart("η", points([1, 2, None, 4, 5, 6])))
    assert len(having(root, "mark")) == 5
    lengths = [len(line.get("points", "").split()) for line in having(root, "trace")]
    assert lengths == [2, 3]
    apart = [Point(shard, 1.0, Status.PASSED) for shard in (1, 2, 5, 6)]
    assert len(having(parsed(Chart("η", apart)), "trace")) == 2


def test_what_has_no_value_but_a_problem_stands_below_the_axis() -> None:
    series = points([1.0, 0.9])
    series += [Point(3, None, Status.FAILED, "gone"), Point(4, None, Status.UNDECIDED, "?")]
    root = parsed(Chart("η", series))
    base = max(float(line.get("y1", "0")) for line in having(root, "grid"))
    starts = [re.match(r"M\S+ (\S+?)l", node.get("d", "")) for node in having(root, "mark")[2:]]
    assert [float(start.group(1)) > base for start in starts if start] == [True, True]
    assert "none" in [node.text for node in root.iter("text")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_missing(value: float) -> None:
    chart = Chart("η", points([0.5, value]), floor={1: 0.1, 2: value}, claims=points([value]))
    text = draw(chart, "one")
    assert len(having(ET.fromstring(text), "mark")) == 1
    assert "nan" not in text.lower()
    assert "inf" not in text.lower()


def test_shapes_tell_how_a_check_ended() -> None:
    series = [Point(1, 0.9, Status.PASSED), Point(2, 0.6, Status.FAILED)]
    root = parsed(Chart("η", [*series, Point(3, 0.7, Status.UNDECIDED)]))
    assert [node.tag for node in having(root, "passed")] == ["circle"]
    (cross,), (diamond,) = having(root, "failed"), having(root, "open")
    assert cross.get("d", "").count("l") == 2
    assert diamond.get("d", "").endswith("z")


def test_the_threshold_lies_on_its_value() -> None:
    root = parsed(Chart("η", points([0.99, 1.0]), 0.7, "at least 0.7", within=(0.5, 1)))
    (line,) = having(root, "threshold")
    assert float(line.get("y1", "nan")) == float(line.get("y2", "nan")) == y_of(root, "0.7")
    assert having(root, "limit")[0].text == "at least 0.7"


def test_a_threshold_outside_the_values_widens_the_axis() -> None:
    root = parsed(Chart("log2 p", points([-2048, -2000]), -64, "at most −64", at_most=True))
    y = float(having(root, "threshold")[0].get("y1", "nan"))
    assert y_of(root, "0") <= y <= y_of(root, "−2500")


def test_the_floor_is_a_stair_with_a_step_per_shard() -> None:
    root = parsed(Chart("accuracy", points([0.5, 0.6, 0.9]), floor={1: 0.2, 2: 0.4, 3: 0.4}))
    (stair,) = having(root, "floor")
    assert (stair.get("d", "").count("M"), stair.get("d", "").count("H")) == (1, 3)
    root = parsed(Chart("accuracy", points([0.5, None, 0.9]), floor={1: 0.2, 3: 0.4}))
    assert having(root, "floor")[0].get("d", "").count("M") == 2


def test_claims_are_rings_and_squares_where_they_disagree() -> None:
    claims = [Point(1, 0.5, Status.PASSED, "a"), Point(2, 0.9, Status.FAILED, "b")]
    root = parsed(Chart("accuracy", points([0.5, 0.6]), claims=claims))
    assert [node.tag for node in having(root, "claim")] == ["circle", "rect"]


def test_readers_and_pointers_get_words() -> None:
    root = parsed(Chart("Detection rate", points([1.0, None, 0.9]), 0.7, "at least 0.7"))
    assert root.get("role") == "img"
    words = {node.get("id"): node.text for node in root.iter() if node.get("id")}
    assert [words[name] for name in root.get("aria-labelledby", "").split()] == [
        "Detection rate",
        "2 of 3 shards have a value. at least 0.7",
    ]
    assert [mark[0].text for mark in having(root, "mark")] == ["shard 1", "shard 3"]


def test_very_many_points_are_thinned_and_the_bad_ones_stay() -> None:
    series = points([1.0] * 50_000)
    series[31_416] = Point(31_417, 0.2, Status.PASSED, "low")
    series[40_000] = Point(40_001, 0.9, Status.FAILED, "failed")
    text = draw(Chart("η", series), "one")
    tips = [mark[0].text for mark in having(ET.fromstring(text), "mark")]
    assert len(tips) <= charts.MOST_POINTS
    assert {"low", "failed"} <= set(tips)
    assert text.count("<polyline") == 1  # thinning leaves no holes in the line


def test_hostile_words_stay_words() -> None:
    chart = Chart(EVIL, [Point(1, 1.0, Status.FAILED, EVIL)], 0.5, EVIL)
    root = parsed(chart)
    allowed = {"svg", "title", "desc", "line", "text", "g", "path"}
    assert {node.tag for node in root.iter()} <= allowed
    assert [node.text for node in root.iter("title")] == [EVIL, EVIL]
    assert not [name for node in root.iter() for name in node.attrib if name.startswith("on")]
    tile = ET.fromstring(charts.tile(EVIL, EVIL, Status.PASSED, EVIL))
    tags = ("svg", "title", "line", "path", "rect", "text", "tspan")
    assert {node.tag for node in tile.iter()} == set(tags)


def test_control_characters_are_spelt_out() -> None:
    odd = "a\x00\x1b[2J\u202eb\udcff\ufffe"
    assert plain(odd) == r"a\u0000\u001b[2J\u202eb\udcff\ufffe"
    assert ET.fromstring(tag("p", odd, title=odd)).get("title") == plain(odd)


def test_tiles_say_how_the_shard_ended() -> None:
    for status, shape in ((Status.PASSED, "passed"), (Status.FAILED, "failed"), (None, "start")):
        root = ET.fromstring(charts.tile("7", "η 0.996", status, "tip"))
        assert len(having(root, shape)) == 1
        assert "".join(root.itertext()) == "tipW7η 0.996"
    gap = ET.fromstring(charts.tile("", "12 more", None, "shards 4 to 15"))
    assert not having(gap, "node")


def test_the_legend_names_what_is_drawn_and_no_more() -> None:
    calm = charts.legend(Chart("η", points([1.0])))
    assert "failed" not in calm
    assert "figure" not in calm
    claims = points([0.9], Status.FAILED)
    worried = charts.legend(Chart("η", points([1.0], Status.UNDECIDED), claims=claims))
    assert "could not be decided" in worried
    assert "disagreeing" in worried


def test_every_colour_has_a_light_and_a_dark_value() -> None:
    used = set(re.findall(r"var\((--[\w-]+)\)", charts.STYLE))
    light, dark = charts.STYLE.split("prefers-color-scheme: dark")
    for part in (light, dark):
        assert used <= set(re.findall(r"(--[\w-]+):", part))


@given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e12))
def test_ticks_enclose_the_range_evenly(low: float, span: float) -> None:
    high = low + span
    found = ticks(low, high)
    step = found[1] - found[0]
    assert 2 <= len(found) <= 9
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step
    steps = [after - before for before, after in itertools.pairwise(found)]
    assert max(steps) - min(steps) < 1e-6 * step


@given(st.integers(1, 100_000))
def test_shard_ticks_are_few_and_inside(last: int) -> None:
    found = charts.shard_ticks(1, last)
    assert 1 <= len(found) <= 11
    assert found == sorted(set(found))
    assert (found[0] >= 1, found[-1] <= last) == (True, True)


def test_the_words_of_a_floor_cross_none_of_its_steps() -> None:
    floor = {shard: 0.3 + 0.1 * shard for shard in range(1, 7)}
    points = [Point(shard, 0.95, Status.PASSED) for shard in floor]
    root = parsed(Chart("x", points, floor=floor, limit="the terms' floor"))
    stairs = having(root, "floor")[0].get("d", "")
    steps = [float(y) for y in re.findall(r"[V ]([\d.]+)", stairs)]
    words = float(having(root, "limit")[0].get("y", "nan"))
    # Six steps over 254 units: the words are about as wide as the last two.
    assert not min(steps[-2:]) - 2 < words < max(steps[-2:]) + 8
