"""What people see of a real run under levels progress and replay: verdict, terminal, report."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polo.checks import MEANINGS, Status
from polo.evidence.replay import challenge as drawing
from polo.verifier import Outcome, Policy
from polo.verifier.report import render
from polo.verifier.terminal import show


@pytest.fixture(scope="module")
def whole(train: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four shards with levels chain, progress and replay."""
    path = tmp_path_factory.mktemp("whole") / "proof"
    return train(path, epochs=4, terms={"progress": True})


def printed(verdict: Any) -> str:
    file = io.StringIO()
    show(verdict, Console(file=file, width=100))
    return " ".join(file.getvalue().split())


def test_an_honest_run_is_shown_in_full(whole: Any, tmp_path: Path) -> None:
    asked = drawing.draw(whole.path)
    answer = whole.answer(asked, tmp_path / "answer")
    verdict = whole.verify(asked, answer, policy=Policy())
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    run = len(asked.segments)
    assert f"{run} of 12 segments run again, all to the bit" in verdict.headline()
    assert verdict.facts["start"] == "derived"
    assert "effort before" not in verdict.caution
    assert [item["outcome"] for item in verdict.to_json()["levels"]] == ["passed"] * 3
    assert f"{run} of 12 segments" in printed(verdict)
    assert "✓ progress heuristics: z = " in printed(verdict)
    page = render(verdict)
    assert page.count('class="polo-strip"') == 1
    assert page.count('class="largest"') == 4
    assert page.count('role="img" aria-labelledby="progress-') == 3
    assert {check.name for check in verdict.checks} <= MEANINGS.keys()
    # What was drawn and what is asked for in any case are told apart, and every move is known.
    segments = [check for check in verdict.checks if check.name == "segment"]
    assert 0 < sum(int(check.figures["always"]) for check in segments) < run
    assert all(float(check.figures["move"]) > 0 for check in segments)


def test_a_missing_answer_names_its_segments(whole: Any) -> None:
    asked = drawing.draw(whole.path)
    verdict = whole.verify(asked)
    assert verdict.headline().startswith(
        "REJECTED at level replay: segment (shard 1, segment 0): was asked for, and there is no"
    )
    assert f"<b>0 of {len(asked.segments)}</b>" in render(verdict)
    assert f"✕ replay {len(asked.segments)} of {len(asked.segments)} segments" in printed(verdict)


def test_a_wrong_state_names_its_segment(whole: Any, tmp_path: Path) -> None:
    asked = drawing.draw(whole.path)
    answer = whole.answer(asked, tmp_path / "answer")
    place = asked.segments[-1]
    file = answer / place.file("model")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    verdict = whole.verify(asked, answer)
    (failed,) = verdict.of(Status.FAILED)
    assert failed.where[:2] == [f"shard {place.shard}", f"segment {place.segment}"]
    start = f"REJECTED at level replay: segment (shard {place.shard}, segment {place.segment}, "
    assert verdict.headline().startswith(start)
    assert verdict.ended("chain") is Status.PASSED


def test_without_a_draw_the_report_says_what_to_do(whole: Any) -> None:
    verdict = whole.verify()
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.headline().startswith("COULD NOT DECIDE at level replay: draw: ")
    assert "polo challenge" in render(verdict)
    assert "Segments on record" in render(verdict)
