"""The report's sections of levels: sentence, figures, drawings, and amber where it is due."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from polo.checks import Check, Status
from polo.verifier.levels import LEVEL_TEXTS
from polo.verifier.report import render
from polo.verifier.verdict import Verdict

Make = Callable[..., Verdict]
Reader = Callable[[str], Any]


def figures(page: Any) -> dict[str, str]:
    """The figures of a page, by their labels: what stands first below each."""
    items = [(tag, "".join(text)) for tag, _, text in page.elements if tag in ("dt", "dd")]
    pairs = itertools.pairwise(items)
    return {label: value for (tag, label), (_, value) in pairs if tag == "dt"}


def level(page: Any, name: str) -> str:
    """The text of a level's section."""
    (text,) = [s for s in page.find("section", class_="level") if s.startswith(f"Level {name}")]
    return str(text)


def test_every_level_has_a_section_in_order(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict()))
    sections = page.find("section", class_="level")
    assert [text.split("✓")[0] for text in sections] == [
        *("Level chain", "Level progress", "Level replay")
    ]
    for text, name in zip(sections, ("chain", "progress", "replay"), strict=True):
        assert LEVEL_TEXTS[name].shows in text
        assert LEVEL_TEXTS[name].does_not_show in text
    warnings = page.find("p", class_="amber")
    assert len(warnings) == 3
    # Replay closes what the chain and the heuristics leave open by themselves.
    assert warnings[0].startswith("By itself it does not show: effort; offline")
    assert warnings[1].startswith("By itself it does not show: ")
    assert "never enough for pay" in warnings[1]
    assert "worth learning; nor every segment" in warnings[2]
    assert "escapes with probability 0.8." in warnings[2]
    assert page.find("ul", class_="chips") == ["✓ chain, passed✓ progress, passed✓ replay, passed"]


def test_a_level_that_is_not_known_here_has_a_section_too(
    effort_verdict: Make, read_page: Reader
) -> None:
    unknown = Check("evidence", Status.UNDECIDED, "this release cannot check it", level="receipts")
    page = read_page(render(effort_verdict(unknown, levels=("chain", "receipts"))))
    assert "could not be decidedThis release cannot check it." in level(page, "receipts")


def test_a_chain_alone_has_no_chips(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(levels=("chain",))))
    assert not page.find("ul", class_="chips")
    assert len(page.find("section", class_="level")) == 1
    assert page.find("p", class_="amber")[0].startswith("It does not show: effort; offline")
    assert page.find("small") == ["at level chain"]


def test_figures_of_replay(effort_verdict: Make, read_page: Reader) -> None:
    shown = figures(read_page(render(effort_verdict(inexact=12))))
    assert shown["Segments asked for"] == "52 of 220"
    assert shown["Came out as recorded"] == "52 of 52"
    assert shown["Sealings done again"] == "3 of 3"
    assert shown["Steps run again"] == "520"
    assert shown["Samples shown"] == "1,480 ✓"
    assert shown["A tenth faked escapes"] == "0.0056"
    assert shown["One segment faked escapes"] == "0.8"
    text = level(read_page(render(effort_verdict(inexact=12))), "replay")
    assert "40 to the bit, the others as close as honest repetitions" in text
    assert "44 drawn; 8 in any case" in text


def test_figures_of_a_forged_run(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(forged=True, wrong=((2, 1), (7, 3)))))
    shown = figures(page)
    asked = int(shown["Segments asked for"].split()[0])
    assert shown["Came out as recorded"] == f"{asked - 2} of {asked}"
    assert "A tenth faked escapes" not in shown
    assert shown["Down the slope of held-out loss"].endswith("✕")
    assert shown["Held-out loss"] == "0.2 → 0.2 ✕"
    assert shown["Straightness of the path"] == "not judged"
    assert page.find("small") == ["at level replay"]
    assert "When it passes, it shows" in level(page, "replay")
    assert "It shows" in level(page, "chain")


def test_charts_of_progress(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(levels=("chain", "progress"))))
    text = level(page, "progress")
    assert "8 asked at first" in text
    assert "2.07 or less asked" in text
    drawn = page.find("svg", class_="polo-chart", role="img")
    assert len(drawn) == 3 + 3
    z, loss, moves = drawn[3:]
    assert z.count("shard 1: moved by") == 1
    assert "start: 2.303" in loss
    assert "z = 140.0" in moves
    # Judged are the first shard by its z and the lowest loss; the others are neither good nor bad.
    assert len(page.find("circle", class_="note")) == 9 + 10 + 10 + 1  # and one in the legend
    tops = page.find("h3")
    assert tops.count("Shard by shard") == 2


def test_a_failed_progress_crosses_the_point_that_failed(
    effort_verdict: Make, read_page: Reader
) -> None:
    page = read_page(render(effort_verdict(levels=("chain", "progress"), forged=True)))
    assert len(page.find("path", class_="failed")) == 2 + 1  # z of shard 1, lowest loss, legend


def test_notes_of_shards_are_figures_and_no_notes(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(shards=40, start="free")))
    (notes,) = [text for text in page.find("section") if text.startswith("Notes")]
    assert notes == "Notesstart: free: nothing is claimed about the start"


def test_the_strip_of_replay(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(wrong=((3, 4), (3, 9)))))
    (text,) = page.find("svg", class_="polo-strip")
    assert "2 failed" in text
    assert "shard 3, segment 4, failed" in text
    assert "8 in any case" in text
    assert "3 sealings" in text
    assert "220 segments in 10 shards" in text
    assert len(page.find("line", class_="largest")) == 10
    none = read_page(render(effort_verdict(drawn=False)))
    assert not none.find("svg", class_="polo-strip")
    assert figures(none)["Segments on record"] == "220"


def test_no_answer_draws_no_moves(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(answered=False)))
    (text,) = page.find("svg", class_="polo-strip")
    assert "52 failed" in text
    assert not page.find("line", class_="largest")
    assert figures(page)["Came out as recorded"] == "0 of 52"


def test_segments_that_say_the_same_are_one_problem(
    effort_verdict: Make, read_page: Reader
) -> None:
    page = read_page(render(effort_verdict(wrong=((2, 1), (2, 5), (7, 3)))))
    items = page.find("li", class_="is-failed")
    (item,) = [text for text in items if text.startswith("segment")]
    assert item.startswith(
        "segment · failed · level replay · 3 times · shard 2, segments 1 and 5; "
    )
    assert "shard 7, segment 3" in item
    (alone,) = [
        text
        for text in read_page(render(effort_verdict(wrong=((2, 1),)))).find("li")
        if text.startswith("segment")
    ]
    assert alone.startswith("segment · failed · level replay · shard 2 · segment 1came out")


def test_every_segment_is_in_the_full_list(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(wrong=((7, 3),))))
    (group,) = [g for g in page.find("details", class_="group") if g.startswith("segment")]
    head = "ShardSegmentResultFound"
    assert group.partition(head)[2].startswith("73✕ failed")  # what failed comes first
    (record,) = [g for g in page.find("details", class_="group") if g.startswith("record")]
    assert "Segment" not in record.partition("Shard")[2].partition("Found")[0]


def test_shards_name_the_level_that_refuses_them(effort_verdict: Make, read_page: Reader) -> None:
    page = read_page(render(effort_verdict(wrong=((3, 4),))))
    (chain,) = page.find("ol", class_="chain")
    assert "✕ replay" in chain
    assert chain.count("✓ η") == 9


def test_a_long_run_is_a_small_page(effort_verdict: Make) -> None:
    short = render(effort_verdict(shards=10, segments=22))
    long = render(effort_verdict(shards=10, segments=10_000))
    assert len(long) < 1.1 * len(short)


@pytest.mark.parametrize("start", ["free", "parent", "derived"])
def test_the_start_is_among_the_facts(effort_verdict: Make, read_page: Reader, start: str) -> None:
    words = {"free": "may have been trained", "parent": "terms name", "derived": "untrained"}
    page = read_page(render(effort_verdict(start=start)))
    (said,) = [text for text in page.find("div") if text.startswith("Start")]
    assert words[start] in said
    (box,) = page.find("aside")
    assert ("effort before W_0" in box) == (start != "derived")
