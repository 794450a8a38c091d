"""What is recorded about effort, and the page made of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from polo.errors import PoloError
from polo_lab.experiments import effort_report, escapes, lines, pages
from polo_lab.experiments.effort_rows import ERROR, Row
from polo_lab.experiments.lines import Line, Recording

PASSED = {"chain": "passed", "start": "passed", "progress": "passed", "replay": "passed"}
HONEST = Row(
    "digits", "adam", "cosine", 1, "honest", "accepted", PASSED,
    seconds=2.0, steps=100, honest_seconds=2.0, honest_steps=100,
    answering=1.0, verifying=0.5, replaying=0.2, replayed=25, accuracy=0.9, honest_accuracy=0.9,
)  # fmt: skip
FORGED = replace(
    HONEST,
    attack="inflation",
    outcome="rejected",
    levels={**PASSED, "replay": "failed"},
    faults=("replay/segment",),
    seconds=0.1,
    steps=0,
)
RUN = {
    "machine": {"cpu": "A", "cores": 2, "gpu": "", "python": "3.11", "packages": {"torch": "2"}},
    "command": "polo-lab run effort",
    "workers": 2,
    "began": "2026-01-01T00:00:00+00:00",
}


def line_of(row: Row) -> Line:
    ended = lines.CRASHED if row.outcome == ERROR else lines.DONE
    return Line("effort", row.settings(), ended, row.figures(), row.timings(), row.note)


def recording(*rows: Row) -> Recording:
    return Recording([line_of(row) for row in rows], [RUN])


def page_of(*rows: Row) -> str:
    return "\n\n".join(effort_report.sections("small", recording(*rows)))


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    for row in (HONEST, FORGED):
        lines.add(tmp_path / "lines", line_of(row))
    assert [Row.of(line) for line in lines.read(tmp_path / "lines").lines] == [HONEST, FORGED]


def test_a_cheap_attack_that_passes_is_wrong() -> None:
    assert not FORGED.wrong
    assert replace(FORGED, outcome="accepted").wrong
    assert replace(FORGED, outcome="accepted", seconds=1.9, steps=49).wrong
    # Time alone makes no attack cheap: forgers do without most of what an honest second goes into.
    assert not replace(FORGED, outcome="accepted", seconds=0.1, steps=50).wrong


@pytest.mark.parametrize("outcome", ["rejected", "undecided", "error"])
def test_an_honest_run_that_is_not_accepted_is_wrong(outcome: str) -> None:
    assert not HONEST.wrong
    assert replace(HONEST, outcome=outcome).wrong


def test_levels_are_judged_one_by_one() -> None:
    assert FORGED.accepted_by()
    assert FORGED.accepted_by("start", "progress")
    assert not FORGED.accepted_by("replay")
    assert not replace(FORGED, levels={}).accepted_by()


def test_reading_keeps_the_last_run_that_did_not_break(tmp_path: Path) -> None:
    broken = replace(FORGED, outcome=ERROR)
    passed = replace(FORGED, seed=2, outcome="accepted", note="by luck")
    for row in (broken, HONEST, FORGED, broken, passed):
        lines.add(tmp_path / "lines", line_of(row))
    assert [Row.of(x) for x in lines.read(tmp_path / "lines").lines] == [FORGED, HONEST, passed]


def test_what_passes_stands_first_and_in_bold() -> None:
    passed = replace(FORGED, outcome="accepted", levels=PASSED, seconds=1.2, steps=60)
    page = page_of(HONEST, FORGED, passed)
    assert "**inflation: 1 of 2" in page
    assert page.index("What still passes") < page.index("Attack × level")
    assert "60.0% of the gradient steps and 60.0% of the time" in page
    assert "cheap**" not in page
    cheap = replace(passed, steps=10, note="nine tenths left out")
    page = page_of(HONEST, cheap)
    assert "1 of them cheap**. For instance: nine tenths left out." in page


def test_enrolling_again_is_computed_as_the_threat_model_says() -> None:
    text = effort_report.retried(0.5, 10, 2)
    assert "27% of the training" in text
    assert "about 341 enrolments" in text
    assert "about 17 enrolments" in effort_report.retried(0.2, 10, 2)


def test_the_table_counts_by_level() -> None:
    page = page_of(HONEST, FORGED, replace(FORGED, outcome="undecided"))
    line = next(line for line in page.splitlines() if line.startswith("| inflation | 5"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[4:] == ["0", "0", "0", "2", "2 of 2", "1", "15.8 to 100.0 %"]
    assert "No attacked run was accepted by all levels: 0 of 2 (0.0 to 84.2 %)." in page


def test_honest_alarms_are_counted() -> None:
    alarm = replace(
        HONEST,
        outcome="rejected",
        levels={**PASSED, "progress": "failed"},
        faults=("progress/path",),
    )
    page = page_of(HONEST, alarm)
    assert "| all | 0 | 0 | 1 | 0 | 1 of 2 | 1.3 to 98.7 % |" in page
    assert "| progress | path | 1 of 2 (1.3 to 98.7 %) | – |" in page
    assert f"- **{alarm.task}, {alarm.optimizer}, {alarm.schedule} rate, seed" in page
    assert "rejected** by progress/path." in page
    assert "not accepted" not in page_of(HONEST).split("Attack × level")[0].split("##", 2)[2]


def test_the_page_is_what_was_recorded() -> None:
    page = pages.results_page()
    assert (pages.FOLDER / "results.md").read_text(encoding="utf-8") == page, "run polo-lab docs"


def test_pages_are_not_written_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(PoloError, match="no recorded runs"):
        pages.write(tmp_path / "typo", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_allowance_is_said_on_the_page() -> None:
    page = page_of(HONEST, FORGED)
    assert "millionths" not in page
    page = page_of(replace(HONEST, tolerance=1000))
    assert "allow a deviation of 1000 millionths" in page


def test_escapes_are_compared_with_what_was_stated() -> None:
    honest = {"attack": "honest", "optimizer": "sgd", "seed": 0, "challenges": 300, "verified": 2}
    drawn = {"segments": 660, "drawn": 24, "faked": 0, "stated": 1.0, "missed": 300, "accepted": 2}
    skipped = {**drawn, "faked": 66, "stated": 0.0776, "missed": 21, "accepted": 0}
    found = [
        Line("escapes", honest, lines.DONE, drawn),
        Line("escapes", {**honest, "attack": "skipping"}, lines.DONE, skipped),
    ]
    page = "\n".join(escapes.sections(Recording(found, [RUN])))
    assert (
        "| skipping | sgd | 66 of 660 | 24 | 7.8 % | 21 of 300 | 4.4 to 10.5 % | 0 of 2 |" in page
    )
    assert "| honest | sgd | 0 of 660 | 24 | – | – | – | 2 of 2 |" in page
    assert list(escapes.sections(Recording())) == []
    assert escapes.wrong(replace(found[0], figures={**drawn, "accepted": 1}))
    assert not escapes.wrong(found[0])


def test_nothing_that_is_recorded_about_effort_broke() -> None:
    for name in ("effort", "effort-tolerance", "effort-resnet18"):
        found = lines.read(lines.path_of(name, lines.FOLDER))
        assert found.lines
        assert [line for line in found.lines if line.ended != lines.DONE] == []
