"""The report: one page that loads nothing, runs nothing and lets nothing through."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polo.checks import MEANINGS, Check, Status
from polo.verifier import report
from polo.verifier.levels import LEVEL_TEXTS
from polo.verifier.report import render
from polo.verifier.rows import shard_rows
from polo.verifier.verdict import Verdict

Reader = Callable[[str], Any]
"""Parses a page."""

CHROMIUM = Path("/usr/bin/chromium")
EVIL = "</script><script>alert(1)</script><img src=x onerror='alert(1)'>\"</pre></style>"
FACTS: dict[str, str | int] = {
    "identity": "44" * 32,
    "issuer": "8e" * 32,
    "task": "digits (version 1)",
    "metric": "accuracy",
    "bits": 256,
    "scheme": "ednn, block keys, 256 bits",
    "eta_verify": "0.7",
    "log2_p_threshold": -64,
    "final_root": "06" * 32,
    "issued": 1_794_774_241,
}


def mark(shard: int, matches: int = 255) -> Check:
    eta = matches / 256
    figures = {"eta": eta, "matches": matches, "bits": 256, "log2_p": -matches + 7.0}
    status = Status.PASSED if eta >= 0.7 else Status.FAILED
    return Check("mark", status, f"η = {eta:.4f}", shard, figures=figures)


def accuracy(shard: int, *, claimed: float = 0.9) -> list[Check]:
    close = Status.PASSED if claimed == 0.9 else Status.FAILED
    return [
        Check("accuracy", Status.PASSED, "", shard, figures={"measured": 0.9, "floor": 0.5}),
        Check("claim", close, "", shard, figures={"claimed": claimed, "measured": 0.9}),
    ]


def verdict(shards: int, *more: Check, bad: tuple[int, ...] = (), **facts: Any) -> Verdict:
    """A verdict as `verify` makes it, newest shard first, with some marks failed."""
    checks = [Check("manifest", Status.PASSED, "format polo/proof/1")]
    for shard in range(shards, 0, -1):
        checks.append(Check("nonce", Status.PASSED, "the issuer committed to it", shard))
        checks.append(mark(shard, 150 if shard in bad else 255))
        checks += accuracy(shard)
    note = Check("start", Status.NOTE, "free: nothing is claimed about the start")
    return Verdict("proof", (*checks, note, *more), {**FACTS, "shards": shards, **facts})


UNDECIDED = Check(
    "nonce",
    Status.UNDECIDED,
    "the nonce is not here",
    3,
    "nonces/000003.json",
    advice="Ask the prover for the verifier's bundle.",
)
BROKEN = Verdict("nowhere", (Check("manifest", Status.FAILED, "no JSON", place="manifest.json"),))
HOSTILE = Verdict(
    EVIL,
    (
        Check("files", Status.FAILED, EVIL, 999_999, EVIL * 3, {"x": EVIL}, EVIL),
        Check("delivered", Status.UNDECIDED, EVIL + "\x1b[2J\u202e", place="A" * 400),
        Check("start", Status.NOTE, EVIL + "\udcff"),
        mark(1),
        Check("accuracy", Status.PASSED, EVIL, 1, figures={"measured": EVIL, "floor": 0.5}),
    ),
    {**dict.fromkeys((*FACTS, "shards"), EVIL), "final_root": '"><svg/onload=alert(1)>' * 3},
)
PAGES = {
    "accepted": verdict(6),
    "rejected": verdict(12, UNDECIDED, bad=(4, 7)),
    "undecided": verdict(6, UNDECIDED),
    "sixty": verdict(60, bad=(31,)),
    "one": verdict(1),
    "broken": BROKEN,
    "empty": Verdict("nowhere", ()),
    "hostile": HOSTILE,
}

EFFORT: dict[str, dict[str, Any]] = {
    "effort": {},
    "free start": {"levels": ("chain", "replay"), "start": "free", "inexact": 5},
    "forged": {"forged": True, "wrong": ((2, 1), (2, 5), (7, 3))},
    "unanswered": {"forged": True, "answered": False},
    "undrawn": {"drawn": False},
    "long": {"shards": 200, "segments": 500, "draws": 60},
    "progress": {"levels": ("chain", "progress")},
    "tiny": {"shards": 1, "segments": 1, "draws": 1},
}


@pytest.fixture
def pages(effort_verdict: Callable[..., Verdict]) -> dict[str, Verdict]:
    """Verdicts of all kinds."""
    hostile = Check("segment", Status.FAILED, EVIL, 1, EVIL, {"segment": 3}, EVIL, "replay")
    other = Check("evidence", Status.UNDECIDED, EVIL, level="progress", place=EVIL)
    return {
        **PAGES,
        **{name: effort_verdict(**options) for name, options in EFFORT.items()},
        "hostile effort": effort_verdict(hostile, other),
    }


ALL = [*PAGES, *EFFORT, "hostile effort"]


@pytest.mark.parametrize("name", ALL)
def test_a_page_loads_nothing_and_runs_nothing(
    name: str, pages: dict[str, Verdict], read_page: Reader
) -> None:
    source = render(pages[name])
    page = read_page(source)
    for tag, attributes, _ in page.elements:
        assert tag not in {
            "script",
            "img",
            "link",
            "iframe",
            "object",
            "embed",
            "form",
            "base",
            "a",
        }
        assert not [key for key in attributes if key.startswith("on")]
        assert not {"src", "href", "srcset", "style", "xlink:href"} & set(attributes)
    assert "http:" not in source
    assert "https:" not in source
    (style,) = page.find("style")
    assert not re.search(r"url\(|@import|expression", style)
    policy = [a["content"] for t, a, _ in page.elements if "http-equiv" in a]
    assert policy[0].startswith("default-src 'none'")
    assert source.encode("utf-8")


@pytest.mark.parametrize("name", ALL)
def test_the_data_is_the_verdict(name: str, pages: dict[str, Verdict], read_page: Reader) -> None:
    (text,) = read_page(render(pages[name])).find("pre", id="verdict-json")
    assert json.loads(text) == json.loads(json.dumps(pages[name].to_json()))


def test_hostile_words_are_shown_as_words(read_page: Reader) -> None:
    source = render(HOSTILE)
    assert EVIL not in source
    assert "<script" not in source
    assert "<img" not in source
    page = read_page(source)
    assert EVIL in page.find("p", class_="brand")[0]
    # Control and direction marks are spelt out, not passed on.
    shown = "".join(page.find("main"))
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", shown)
    assert r"\u001b[2J\u202e" in shown


def test_outcomes_have_their_colours(read_page: Reader) -> None:
    for name, shape in (("accepted", "passed"), ("rejected", "failed"), ("undecided", "open")):
        page = read_page(render(PAGES[name]))
        assert len(page.find("header", class_=shape)) == 1
        (title,) = page.find("h1")
        assert title.lower().startswith(PAGES[name].outcome.words.lower())


def test_an_accepted_verdict_says_what_it_does_not_show(read_page: Reader) -> None:
    source = render(PAGES["accepted"])
    (box,) = read_page(source).find("aside")
    assert "Order and ownership, not effort." in box
    assert PAGES["accepted"].caution.removeprefix("it ") in box
    assert re.search(r"also ask for.*receipts: .*replay: ", box)
    assert source.index("</header><aside>") > 0  # directly below
    for name in ("rejected", "undecided", "broken", "empty"):
        assert not read_page(render(PAGES[name])).find("aside")


def test_higher_levels_close_what_lower_ones_leave_open(read_page: Reader) -> None:
    def box(*levels: str) -> str:
        held = [Check("evidence", Status.PASSED, level=level) for level in levels]
        held.append(Check("draw", Status.PASSED, level="replay"))
        held.append(Check("dates", Status.PASSED, level="receipts"))
        checks = (*verdict(2).checks, *held)
        return read_page(render(Verdict("proof", checks, FACTS, levels))).find("aside")[0]

    assert "receipts: " not in box("chain", "receipts")
    assert "replay: " in box("chain", "receipts")
    everything = box(*LEVEL_TEXTS)
    assert "worth learning no proof shows" in everything
    assert "not effort" not in everything
    assert "effort before W_0" in everything
    assert "a drawn start: " in everything


def test_accuracy_that_was_not_measured_is_named(read_page: Reader) -> None:
    checks = tuple(c for c in verdict(4).checks if c.name not in ("accuracy", "claim"))
    (box,) = read_page(render(Verdict("proof", checks, FACTS | {"shards": 4}))).find("aside")
    assert "Accuracy was not measured" in box
    (box,) = read_page(render(Verdict("p", (*checks, *accuracy(4)), FACTS | {"shards": 4}))).find(
        "aside"
    )
    assert "measured on 1 of 4 shards" in box


def test_long_values_can_be_copied_whole(read_page: Reader) -> None:
    page = read_page(render(PAGES["accepted"]))
    shown = page.find("code", class_="hex")
    assert shown == [FACTS["identity"], FACTS["issuer"], FACTS["final_root"]]
    titles = [a.get("title") for t, a, _ in page.elements if t == "code" and "title" in a]
    assert titles == shown


@pytest.mark.parametrize(("issued", "text"), [(0, "1970-01-01, 00:00 UTC"), (2**53, "seconds")])
def test_dates_of_any_size_are_written(issued: int, text: str, read_page: Reader) -> None:
    assert any(text in shown for shown in read_page(render(verdict(1, issued=issued))).find("dd"))


def test_three_charts_with_a_mark_per_shard(read_page: Reader) -> None:
    page = read_page(render(verdict(60, bad=(31,))))
    marks = page.find("circle", class_="mark") + page.find("path", class_="mark")
    assert len(marks) == 3 * 60 + 2  # and two in the legend
    assert len(page.find("svg", class_="polo-chart", role="img")) == 3
    assert page.find("text", class_="limit") == ["at least 0.7", "at most −64", "floor"]
    assert len(page.find("circle", class_="claim")) == 60 + 1  # and one in the legend


def test_a_shard_whose_nonce_is_missing_is_no_blank(read_page: Reader) -> None:
    checks = tuple(check for check in verdict(5).checks if check.shard != 3)
    page = read_page(render(Verdict("proof", (*checks, UNDECIDED), FACTS | {"shards": 5})))
    assert len(page.find("path", class_="open")) == 2 + 1  # η, log2 p, and the legend


def test_a_claim_that_disagrees_is_a_square(read_page: Reader) -> None:
    checks = (*(c for c in verdict(3).checks if c.shard != 2), mark(2))
    page = read_page(
        render(Verdict("p", (*checks, *accuracy(2, claimed=0.99)), FACTS | {"shards": 3}))
    )
    assert len(page.find("rect", class_="claim")) == 1 + 1
    assert "Rejected" in page.find("h1")[0]


def test_a_long_chain_is_drawn_by_its_ends_and_its_faults(read_page: Reader) -> None:
    (chain,) = read_page(render(verdict(60, bad=(31,)))).find("ol", class_="chain")
    drawn = [int(number) for number in re.findall(r"W(\d+)", chain)]
    assert drawn == [0, 1, 2, 3, 31, *range(52, 61)]
    assert re.findall(r"(\d+) more", chain) == ["27", "20"]
    (short,) = read_page(render(verdict(12))).find("ol", class_="chain")
    assert "more" not in short


def test_numbers_out_of_file_names_do_not_stretch_the_charts() -> None:
    stranger = Check("files", Status.FAILED, "gone", 999_999, "checkpoints/999999.safetensors")
    assert [row.shard for row in shard_rows(verdict(4, stranger))] == [1, 2, 3, 4]
    assert not shard_rows(BROKEN)
    assert not shard_rows(Verdict("p", (stranger,)))


def test_problems_come_before_the_full_list(read_page: Reader) -> None:
    page = read_page(render(PAGES["rejected"]))
    titles = page.find("h2")
    assert titles.index("What stands in the way") < titles.index("Level chain✕ failed")
    items = page.find("li", class_="is-failed") + page.find("li", class_="is-open")
    assert [item.split("η")[0] for item in items[:2]] == [
        *("mark · failed · shard 7", "mark · failed · shard 4")
    ]
    for words in (UNDECIDED.detail, UNDECIDED.place, "What to do: Ask the prover"):
        assert words in items[2]


def test_many_checks_are_grouped_and_counted(read_page: Reader) -> None:
    whole = verdict(1200, bad=tuple(range(1, 101)))
    page = read_page(render(whole))
    assert f"All {len(whole.checks)} checks" in page.find("h2")
    groups = page.find("details", class_="group")
    assert [group.split()[0] for group in groups] == [
        *("manifestThe", "nonceThe", "markThe", "accuracyThe", "claimThe", "startHow")
    ]
    (marks,) = [group for group in groups if group.startswith("mark")]
    assert MEANINGS["mark"] in marks
    assert "✓ 1100" in marks
    assert "✕ 100" in marks
    assert "… and 200 more" in marks
    shown = page.find("ul", class_="problems")[0]
    assert shown.count("mark · failed") == report.MOST_PROBLEMS
    assert "… and 60 more" in page.find("section", class_="long")[0]


def test_levels_are_listed_with_how_they_ended(read_page: Reader) -> None:
    checks = (*verdict(2).checks, Check("evidence", Status.UNDECIDED, "unknown", level="receipts"))
    page = read_page(render(Verdict("proof", checks, FACTS, ("chain", "receipts", "replay"))))
    rows = page.find("tr", class_="on") + page.find("tr", class_="off")
    assert len(rows) == len(LEVEL_TEXTS)
    assert "asked for, passed" in rows[0]
    assert "asked for, could not be decided" in rows[1]
    assert "asked for, not checked" in rows[2]
    assert all("not asked for" in row for row in rows[3:])
    for name, text in LEVEL_TEXTS.items():
        (row,) = [row for row in rows if row.startswith(name)]
        assert text.shows in row
        assert text.does_not_show in row


def test_figures_that_are_no_numbers_leave_gaps(read_page: Reader) -> None:
    odd = Check("mark", Status.FAILED, "odd", 1, figures={"eta": math.nan, "log2_p": -math.inf})
    (text,) = read_page(render(Verdict("p", (odd,)))).find("pre", id="verdict-json")
    assert json.loads(text)["checks"][0]["figures"] == {"eta": None, "log2_p": None}


def test_a_real_proof_shows_no_nonce(make_proof: Callable[..., Any], read_page: Reader) -> None:
    made = make_proof(epochs=3)
    found = made.verify()
    source = render(found)
    page = read_page(source)
    assert page.find("h1") == ["Accepted at level chain"]
    assert len(page.find("circle", class_="mark")) == 3 * made.proof.shards + 1
    assert found.facts["identity"] in page.find("code", class_="hex")
    for path in sorted((made.path / "nonces").iterdir()):
        nonce = json.loads(path.read_text())
        assert nonce["nonce"] not in source
        assert nonce["salt"] not in source
    assert found.outcome.name == "ACCEPTED"


@pytest.mark.slow
def test_a_browser_shows_every_page_without_complaint(
    tmp_path: Path, pages: dict[str, Verdict]
) -> None:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing")
    flags = "no-sandbox headless disable-gpu disable-background-networking no-first-run"
    flags += " disable-component-update disable-sync"
    said: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=CHROMIUM,
            args=[f"--{flag}" for flag in flags.split()],
        )
        tab = browser.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on("request", lambda request: said.append(request.url) if not asked(request) else None)
        for name, content in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(render(content), encoding="utf-8")
            for width in (1200, 400):
                tab.set_viewport_size({"width": width, "height": 900})
                tab.goto(file.as_uri())
                tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
                wide = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                assert wide[0] <= wide[1], f"{name} at {width}: {wide}"
        browser.close()
    assert said == []


def asked(request: Any) -> bool:
    """Whether a request is for the page itself."""
    return bool(request.is_navigation_request()) and str(request.url).startswith("file:")
