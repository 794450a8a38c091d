"""The verdict on a terminal: narrow, honest, and deaf to what hostile names tell it."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from polo.checks import Check, Status
from polo.verifier.terminal import show
from polo.verifier.verdict import Verdict

EVIL = "[bold red]x[/] \x1b[2J\x1b]0;owned\x07 \u202e\r </script>"


def shards(count: int, *, bad: tuple[int, ...] = (), bits: int = 256) -> list[Check]:
    """What `verify` finds in a proof, newest shard first."""
    checks = []
    for shard in range(count, 0, -1):
        eta = 0.6 if shard in bad else 1 - shard / 10_000
        figures = {"eta": eta, "matches": round(eta * bits), "bits": bits, "log2_p": -bits * eta}
        status = Status.FAILED if shard in bad else Status.PASSED
        checks.append(Check("mark", status, f"η = {eta:.4f}", shard, figures=figures))
        measured = {"measured": 0.9, "floor": 0.85}
        checks.append(Check("accuracy", Status.PASSED, "", shard, figures=measured))
    return checks


def printed(verdict: Verdict, width: int = 80, **options: Any) -> str:
    file = io.StringIO()
    show(verdict, Console(file=file, width=width, **options))
    return file.getvalue()


def verdict(*checks: Check, count: int) -> Verdict:
    return Verdict("proof", checks, {"shards": count, "metric": "accuracy"})


def rows_of(text: str) -> list[int]:
    return [int(row) for row in re.findall(r"^ +(\d+) ", text, re.MULTILINE)]


def test_an_accepted_verdict_says_what_it_does_not_show() -> None:
    text = printed(verdict(*shards(6), count=6))
    first, *rest = text.splitlines()
    assert first.startswith("✓ ACCEPTED at level chain: ")
    joined = " ".join(line.strip() for line in rest)
    assert "Order and ownership, not effort. It does not show effort; offline" in joined
    assert "also ask for receipts and replay" in joined
    assert rows_of(text) == [1, 2, 3, 4, 5, 6]
    assert "0.9000 / 0.85" in text


def test_colours_follow_the_outcome() -> None:
    problem = Check("nonce", Status.UNDECIDED, "not here")
    for more, colour in (((), "32"), ((problem,), "34"), (shards(1, bad=(1,)), "31")):
        text = printed(verdict(*shards(2), *more, count=2), force_terminal=True)
        assert text.startswith(f"\x1b[1;{colour}m")
    assert "\x1b[1;33m" in printed(verdict(*shards(2), count=2), force_terminal=True)


@pytest.mark.parametrize("width", [40, 80, 100, 240])
@pytest.mark.parametrize("count", [1, 30, 31, 1000])
def test_no_line_is_wider_than_the_terminal_or_a_hundred(width: int, count: int) -> None:
    long = Check("files", Status.FAILED, "x" * 300, place="y" * 200, advice="word " * 60)
    text = printed(verdict(*shards(count, bits=2048), long, count=count), width)
    assert max(map(len, text.splitlines())) <= min(width, 100)


def test_at_eighty_columns_a_row_takes_one_line() -> None:
    missing = Check("nonce", Status.UNDECIDED, "not here", 7)
    text = printed(verdict(*shards(12, bits=131_072), missing, count=12))
    assert rows_of(text) == list(range(1, 13))
    assert "? undecided" in text


def test_long_chains_are_cut_and_say_so() -> None:
    whole = printed(verdict(*shards(30), count=30))
    assert rows_of(whole) == list(range(1, 31))
    text = printed(verdict(*shards(60, bad=(20, 33)), count=60))
    assert rows_of(text) == [1, 2, 3, 20, 33, *range(51, 61)]
    assert re.findall(r"(\d+) shards left out", text) == ["16", "12", "17"]


def test_without_faults_the_weakest_mark_is_shown() -> None:
    checks = shards(60)
    at = next(at for at, check in enumerate(checks) if check.shard == 40)
    figures = {**checks[at].figures, "eta": 0.8}
    checks[at] = Check("mark", Status.PASSED, "weak", 40, figures=figures)
    assert rows_of(printed(verdict(*checks, count=60))) == [1, 2, 3, 40, *range(51, 61)]


def test_problems_have_place_and_advice_and_notes_follow() -> None:
    problem = Check(
        "nonce", Status.UNDECIDED, "it is not here", 2, "nonces/000002.json", advice="Ask for it."
    )
    note = Check("history", Status.NOTE, "all checkpoints are here")
    text = printed(verdict(*shards(3, bad=(1,)), problem, note, count=3))
    lines = [line.strip() for line in text.splitlines()]
    assert lines[-4:] == [
        "✕ mark (shard 1): η = 0.6000",
        "? nonce (shard 2, nonces/000002.json): it is not here",
        "what to do: Ask for it.",
        "i history: all checkpoints are here",
    ]


def test_a_single_problem_is_said_once() -> None:
    broken = Check("manifest", Status.FAILED, "no JSON", place="manifest.json", advice="Ask again.")
    text = printed(Verdict("nowhere", (broken,)))
    assert text == "✕ REJECTED: manifest (manifest.json): no JSON\n  what to do: Ask again.\n"
    assert printed(Verdict("nowhere", ())) == "? COULD NOT DECIDE: nothing was checked\n"


def test_many_problems_are_counted() -> None:
    text = printed(verdict(*shards(100, bad=tuple(range(1, 101))), count=100))
    assert text.count("✕ mark") == 20
    assert "… and 80 more" in text


def test_hostile_words_do_nothing() -> None:
    evil = Check("files", Status.FAILED, EVIL, 1, EVIL, advice=EVIL)
    note = Check("start", Status.NOTE, EVIL + "\udcff")
    text = printed(verdict(*shards(1), evil, note, count=1), 100)
    assert "[bold red]x[/]" in text
    assert r"\u001b[2J" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    text.encode("utf-8")


def test_a_terminal_without_unicode_gets_ascii() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(verdict(*shards(40, bad=(20,)), count=40), Console(file=file, width=80))
    file.seek(0)
    text = file.read()
    assert text.startswith("x REJECTED: mark (shard 20): eta = 0.6000")
    assert "+ passed" in text


def level_lines(text: str) -> dict[str, str]:
    """The line of each level, with what follows it on further lines."""
    joined = re.sub(r"\n {5,}", " ", text)
    return dict(re.findall(r"^([✓✕?] (?:chain|progress|replay)) +(.*)$", joined, re.MULTILINE))


def test_levels_have_a_line_each(effort_verdict: Callable[..., Verdict]) -> None:
    found = level_lines(printed(effort_verdict(), 100))
    assert found.keys() == {"✓ chain", "✓ progress", "✓ replay"}
    assert found["✓ chain"].startswith("10 marks, weakest η = 0.9500; 0.8955 on the public test")
    assert found["✓ progress"] == (
        "heuristics: z = 140.0 at first, held-out loss 2.3 → 0.3, moves 57 × noise, "
        "straightness 0.43"
    )
    assert found["✓ replay"] == (
        "52 of 220 segments (23.6% of all steps) and 3 sealings run again; a tenth faked escapes "
        "with 0.0056, one segment with 0.8"
    )
    assert not level_lines(printed(effort_verdict(levels=("chain",))))


def test_levels_that_failed_say_where(effort_verdict: Callable[..., Verdict]) -> None:
    text = printed(effort_verdict(forged=True, wrong=((2, 1), (2, 5), (7, 3))), 100)
    found = level_lines(text)
    assert found.keys() == {"✓ chain", "✕ progress", "✕ replay"}
    assert found["✕ progress"] == "downhill, movement and loss failed"
    assert found["✕ replay"].endswith("segments failed (shards 2 and 7)")
    joined = " ".join(text.split())
    assert "✕ segment (3 times: shard 2, segments 1 and 5; shard 7, segment 3): came out" in joined
    assert text.index("✕ segment") < text.index("✕ downhill")
    assert re.search(r"^ +2 .*✕ replay", text, re.MULTILINE)
    assert re.search(r"^ +3 .*✓ passed", text, re.MULTILINE)


def test_an_open_level_gives_its_advice_once(effort_verdict: Callable[..., Verdict]) -> None:
    text = printed(effort_verdict(drawn=False), 100)
    assert level_lines(text)["? replay"] == "draw undecided"
    assert text.count("polo challenge") == 1
    again = Check("segment", Status.UNDECIDED, "a", 1, figures={"segment": 1}, advice="--ends")
    more = [again, *(Check("nonce", Status.UNDECIDED, "x", s, advice="Ask.") for s in (1, 2, 3))]
    text = printed(effort_verdict(*more, drawn=False), 100)
    assert text.count("what to do: Ask.") == 1
    assert text.count("what to do: --ends") == 1


def test_notes_of_shards_are_not_printed(effort_verdict: Callable[..., Verdict]) -> None:
    text = printed(effort_verdict(shards=40, start="free"))
    assert "i start: free" in text
    assert "i movement" not in text


def test_many_failed_segments_are_cut(effort_verdict: Callable[..., Verdict]) -> None:
    wrong = tuple((shard, at) for shard in range(1, 101) for at in range(0, 100, 3))
    text = printed(effort_verdict(shards=100, segments=100, wrong=wrong, forged=True))
    assert len(text.splitlines()) < 60
    assert "segments failed (shards 1 to 100)" in " ".join(text.split())
    odd = [
        Check("segment", Status.FAILED, f"state {at}", 1, figures={"segment": at}, level="replay")
        for at in range(100)
    ]
    text = printed(effort_verdict(*odd, forged=True))
    assert "✕ loss" in text
    assert "… and " in text
    assert text.count("✕ segment") <= 10


@pytest.mark.parametrize("width", [40, 80])
def test_lines_of_levels_are_no_wider_than_the_terminal(
    effort_verdict: Callable[..., Verdict], width: int
) -> None:
    for options in ({}, {"forged": True, "wrong": ((2, 1), (7, 3))}, {"drawn": False}):
        text = printed(effort_verdict(**options), width)
        assert max(map(len, text.splitlines())) <= width


def test_hostile_words_of_levels_do_nothing(effort_verdict: Callable[..., Verdict]) -> None:
    evil = Check("segment", Status.FAILED, EVIL, 1, EVIL, {"segment": 2}, EVIL, "replay")
    text = printed(effort_verdict(evil, Check("evidence", Status.NOTE, EVIL, level="replay")), 100)
    assert r"\u001b[2J" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(effort_verdict(), Console(file=file, width=100))
    file.seek(0)
    assert "held-out loss 2.3 -> 0.3, moves 57 x noise" in " ".join(file.read().split())


def test_a_real_proof_is_shown(make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=3)
    text = printed(made.verify())
    assert rows_of(text) == list(range(1, made.proof.shards + 1))
    assert text.startswith("✓ ACCEPTED at level chain")
    assert text.count("✓ passed") == made.proof.shards
