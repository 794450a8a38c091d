"""Levels of evidence in a verdict: how each ended, which reason is named, what stays open."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from polo.checks import Check, Status
from polo.verifier.findings import Replayed, places_of, shortened
from polo.verifier.levels import DRAWN_START, FINAL, LEVEL_TEXTS, ended
from polo.verifier.rows import shard_rows
from polo.verifier.verdict import Outcome, Verdict

Make = Callable[..., Verdict]


def failed(name: str, level: str, shard: int = 0) -> Check:
    return Check(name, Status.FAILED, f"{name} is wrong", shard, level=level)


def test_an_accepted_headline_says_what_was_shown(effort_verdict: Make) -> None:
    assert effort_verdict().headline() == (
        "ACCEPTED at level chain + progress + replay: order, identity and 10 marks hold; 10 "
        "checkpoints tested, as good as the terms ask; by heuristics it looks like training; 52 of "
        "220 segments run again, all to the bit; a tenth faked escapes with probability 0.0056"
    )
    inexact = effort_verdict(levels=("chain", "replay"), inexact=12).headline()
    assert "40 to the bit, the others as close as honest repetitions" in inexact
    assert "heuristics" not in inexact


def test_a_forged_chain_is_refused_by_the_strictest_level(effort_verdict: Make) -> None:
    verdict = effort_verdict(forged=True, wrong=((2, 1), (2, 5), (7, 3)))
    assert verdict.outcome is Outcome.REJECTED
    assert verdict.headline() == (
        "REJECTED at level replay: segment (shard 2, segment 1): came out otherwise than recorded, "
        "on the platform it was trained on; 2 more segments failed"
    )
    levels = [check.level for check in verdict.problems()]
    assert levels == ["replay"] * 3 + ["progress"] * 3
    assert {level: verdict.ended(level) for level in verdict.levels} == {
        "chain": Status.PASSED,
        "progress": Status.FAILED,
        "replay": Status.FAILED,
    }
    assert verdict.found("progress") == "downhill, movement and loss failed"
    assert verdict.found("replay").startswith("3 of ")
    assert verdict.found("replay").endswith("segments failed (shards 2 and 7)")


def test_what_is_broken_is_named_before_what_is_implausible() -> None:
    checks = [failed("loss", "progress"), failed("segment", "replay", 1), failed("mark", "chain")]
    for order in itertools.permutations(checks):
        verdict = Verdict("proof", order, levels=("chain", "progress", "replay"))
        assert verdict.headline() == "REJECTED at level chain: mark: mark is wrong"
    alone = Verdict("proof", (checks[0],), levels=("chain", "progress"))
    assert alone.headline() == "REJECTED at level progress: loss: loss is wrong"
    # What failed goes before what could not be decided, whatever their levels.
    unclear = Check("nonce", Status.UNDECIDED, "is not here", 2)
    both = Verdict("proof", (unclear, checks[0]), levels=("chain", "progress"))
    assert both.headline().startswith("REJECTED at level progress")
    assert both.problems() == [checks[0], unclear]


def test_a_shard_that_fails_at_two_levels_is_told_by_the_weightier(effort_verdict: Make) -> None:
    rows = shard_rows(effort_verdict(failed("mark", "chain", 3), wrong=((3, 4), (5, 1))))
    assert [row.words for row in rows[2:5]] == ["failed", "passed", "replay"]
    undecided = Check("nonce", Status.UNDECIDED, "is not here", 3)
    rows = shard_rows(effort_verdict(undecided, wrong=((3, 4),)))
    assert rows[2].words == "replay"


def test_a_note_on_the_final_model_stays_a_note() -> None:
    weak = Check("residual", Status.NOTE, "η = 0.51", 1, figures={"eta": 0.51}, level=FINAL)
    (row,) = shard_rows(Verdict("proof", (weak,), {"shards": 1}, (FINAL,)))
    assert (row.words, row.beyond) == ("note", None)


def test_without_a_challenge_nothing_is_decided(effort_verdict: Make) -> None:
    verdict = effort_verdict(drawn=False)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.headline() == (
        "COULD NOT DECIDE at level replay: draw: nothing was drawn yet, so no step was run again"
    )
    assert verdict.found("replay") == "draw undecided"


@pytest.mark.parametrize("level", [level for level in LEVEL_TEXTS if level != "chain"])
def test_a_level_that_was_asked_for_and_not_looked_at_decides_nothing(level: str) -> None:
    checks = (Check("mark", Status.PASSED, "", 1),)
    assert Verdict("proof", checks).outcome is Outcome.ACCEPTED
    verdict = Verdict("proof", checks, levels=("chain", level))
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.headline() == f"COULD NOT DECIDE: nothing was checked at level {level}"
    assert verdict.found(level) == "not looked at"
    note = Check("evidence", Status.NOTE, "looked at elsewhere", level=level)
    assert replace(verdict, checks=(*checks, note)).outcome is Outcome.UNDECIDED


def test_replay_without_its_draw_shows_nothing(effort_verdict: Make) -> None:
    whole = effort_verdict()
    checks = tuple(check for check in whole.checks if check.name != "draw")
    assert ended("replay", whole.checks) is Status.PASSED
    assert ended("replay", checks) is Status.UNDECIDED
    assert replace(whole, checks=checks).outcome is Outcome.UNDECIDED
    noted = (*checks, Check("draw", Status.NOTE, level="replay"))
    assert ended("replay", noted) is Status.UNDECIDED


def test_json_says_how_each_level_ended(effort_verdict: Make) -> None:
    found = effort_verdict(forged=True, drawn=False).to_json()
    ends = {item["level"]: item["outcome"] for item in found["levels"]}
    assert ends == {"chain": "passed", "progress": "failed", "replay": "undecided"}
    assert found["caution"] == ""
    for item in found["levels"]:
        assert item["found"]
        assert item["does_not_show"] == LEVEL_TEXTS[item["level"]].does_not_show
    accepted = effort_verdict()
    assert accepted.to_json()["caution"] == accepted.caution != ""
    assert [item["outcome"] for item in accepted.to_json()["levels"]] == ["passed"] * 3


CAUTIONS = {
    ("chain",): ("not effort.", {"effort; offline"}, {"receipts", "replay"}),
    ("chain", "progress"): (
        "of effort only hints, never enough for pay.",
        {"effort; offline", "heuristics"},
        {"receipts", "replay"},
    ),
    ("chain", "receipts"): ("not effort.", {"a forger can run live"}, {"replay"}),
    ("chain", "replay"): (
        "Effort from an untrained start on",
        {"worth learning", "every segment", "when it was trained"},
        {"receipts"},
    ),
    ("chain", "progress", "replay"): (
        "Effort from an untrained start on",
        {"worth learning", "every segment", "when it was trained"},
        {"receipts"},
    ),
    ("chain", "receipts", "replay"): (
        "Effort from an untrained start on",
        {"worth learning", "every segment"},
        set(),
    ),
}


@pytest.mark.parametrize("levels", CAUTIONS, ids=" ".join)
def test_what_stays_open_depends_on_all_levels(
    effort_verdict: Make, levels: tuple[str, ...]
) -> None:
    short, open_, closers = CAUTIONS[levels]
    logged = Check("dates", Status.PASSED, level="receipts")
    verdict = effort_verdict(logged, levels=levels)
    assert verdict.outcome is Outcome.ACCEPTED
    assert short in verdict.in_short()
    assert len(verdict.gaps()) == len(open_)
    for words in open_:
        assert words in verdict.caution
    assert verdict.closers().keys() == closers
    # Only where steps were run again may a verdict keep silent on effort.
    assert ("effort" in verdict.caution) == ("replay" not in levels)


@pytest.mark.parametrize("levels", [("chain", "replay"), ("chain", "progress", "replay")])
def test_replay_from_a_start_that_is_not_drawn_says_so(
    effort_verdict: Make, levels: tuple[str, ...]
) -> None:
    free = effort_verdict(levels=levels, start="free")
    assert free.in_short() == "Effort from W_0 on, which may have been trained before."
    assert free.caution.startswith("it does not show effort before W_0: the start is free")
    assert DRAWN_START in free.closers()
    named = effort_verdict(levels=levels, start="parent")
    assert named.caution.startswith("it does not show effort before W_0, which is the model")
    assert DRAWN_START not in named.closers()
    drawn = effort_verdict(levels=levels)
    assert "W_0" not in drawn.caution + drawn.in_short()
    # Where a verdict does not say how the chain starts, the worst is taken.
    facts = {key: value for key, value in drawn.facts.items() if key != "start"}
    assert replace(drawn, facts=facts).caution == free.caution


def test_progress_does_not_say_that_a_free_start_was_untrained(effort_verdict: Make) -> None:
    assert "start was untrained" in effort_verdict().texts["progress"].shows
    assert "untrained" not in effort_verdict(start="free").texts["progress"].shows
    assert "weights moved" in effort_verdict(start="free").texts["progress"].shows


def test_the_chance_of_a_single_faked_segment_is_stated(effort_verdict: Make) -> None:
    assert "escapes with probability 0.8" in effort_verdict().caution
    everything = effort_verdict(shards=2, segments=10, draws=20)
    assert "every segment" not in everything.caution


def test_replay_is_counted_from_its_checks(effort_verdict: Make) -> None:
    found = Replayed.of(effort_verdict(wrong=((3, 4),), inexact=5).checks)
    assert found.total == 220
    assert found.steps == 2200
    assert len(found.segments) - found.passed == 1
    assert found.passed - found.exact == 5
    assert found.tenth is None
    places = [(check.shard, check.figures["segment"]) for check in found.segments]
    assert places == sorted(places)
    earlier = Check("segment", Status.FAILED, "", 1, figures={"segment": 0}, ancestor=1)
    assert not Replayed.of([replace(earlier, level="replay")]).segments


def test_odd_figures_are_left_out() -> None:
    odd = [
        Check("record", Status.PASSED, "", 1, figures={"segments": "many"}, level="replay"),
        Check("segment", Status.PASSED, "", 1, figures={"segment": "x"}, level="replay"),
        Check("draw", Status.PASSED, figures={"run": 1, "escape_tenth": "x"}, level="replay"),
    ]
    found = Replayed.of(odd)
    assert (found.total, found.steps, found.tenth) == (0, 0, None)
    assert odd[1].where == ["shard 1"]
    assert Verdict("proof", tuple(odd), levels=("chain", "replay")).headline()


def test_places_are_named_or_counted() -> None:
    def at(shard: int, segment: int) -> Check:
        return Check("segment", Status.FAILED, "", shard, figures={"segment": segment})

    assert places_of([at(3, 4)]) == "shard 3, segment 4"
    some = [at(3, 4), at(3, 5), at(3, 6), at(5, 0)]
    assert places_of(some) == "shard 3, segments 4 to 6; shard 5, segment 0"
    many = [at(shard, segment) for shard in range(1, 40) for segment in range(0, 20, 2)]
    assert places_of(many) == "shards 1 to 39"


def test_many_failures_of_one_kind_do_not_hide_others() -> None:
    segments = [
        Check("segment", Status.FAILED, f"state {at}", 1, figures={"segment": at}, level="replay")
        for at in range(100)
    ]
    loss = failed("loss", "progress")
    groups = shortened([*segments, loss], 20)
    assert [(len(shown), more) for shown, more in groups] == [(10, 90), (1, 0)]
    alike = [replace(check, detail="no answer") for check in segments]
    groups = shortened([*alike, loss], 20)
    assert [(len(shown), more) for shown, more in groups] == [(1, 0), (1, 0)]
    assert len(groups[0][0][0]) == 100
    marks = [Check("mark", Status.FAILED, "the same", shard) for shard in range(1, 6)]
    assert len(shortened(marks, 20)[0][0]) == 5
