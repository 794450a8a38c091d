"""What is recorded, and the page made of it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from polo_lab.experiments import escapes, escapes_report, recorded, report, rows
from polo_lab.experiments.escapes import Escape
from polo_lab.experiments.recorded import Recorded
from polo_lab.experiments.rows import Row

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
    "command": "python -m polo_lab.experiments effort",
    "workers": 2,
    "began": "2026-01-01T00:00:00+00:00",
}


def written(path: Path, *found: Row) -> Path:
    lines = [{"run": RUN}, *({"row": row.to_json()} for row in found)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    _, found = rows.read(written(tmp_path / "lines", HONEST, FORGED))
    assert found == [HONEST, FORGED]


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "lines", HONEST, FORGED)
    path.write_text(path.read_text()[:-20])
    assert rows.read(path) == ([RUN], [HONEST])


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


def test_recording_keeps_the_last_run_that_did_not_break(tmp_path: Path) -> None:
    broken = replace(FORGED, outcome=rows.ERROR)
    passed = replace(FORGED, seed=2, outcome="accepted", note="by luck")
    noted = replace(FORGED, note="of no interest where it was rejected")
    lines = written(tmp_path / "lines", broken, HONEST, noted, broken, passed)
    recorded.record("small", lines, tmp_path)
    assert recorded.load(tmp_path) == [Recorded("small", [RUN], [FORGED, HONEST, passed])]


def test_what_passes_stands_first_and_in_bold() -> None:
    passed = replace(FORGED, outcome="accepted", levels=PASSED, seconds=1.2, steps=60)
    page = report.page([Recorded("small", [RUN], [HONEST, FORGED, passed])])
    assert "**inflation: 1 of 2" in page
    assert page.index("What still passes") < page.index("Attack × level")
    assert "60.0% of the gradient steps and 60.0% of the time" in page
    assert "cheap**" not in page
    cheap = replace(passed, steps=10, note="nine tenths left out")
    page = report.page([Recorded("small", [RUN], [HONEST, cheap])])
    assert "1 of them cheap**. For instance: nine tenths left out." in page


def test_the_table_counts_by_level() -> None:
    page = report.page([Recorded("small", [RUN], [HONEST, FORGED, FORGED])])
    line = next(line for line in page.splitlines() if line.startswith("| inflation | 5"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[4:] == ["0", "0", "0", "2", "2 of 2", "15.8 to 100.0 %"]
    assert "No attacked run was accepted by all levels: 0 of 2 (0.0 to 84.2 %)." in page


def test_honest_alarms_are_counted() -> None:
    alarm = replace(
        HONEST,
        outcome="rejected",
        levels={**PASSED, "progress": "failed"},
        faults=("progress/path",),
    )
    page = report.page([Recorded("small", [RUN], [HONEST, alarm])])
    assert "| all | 0 | 0 | 1 | 0 | 1 of 2 | 1.3 to 98.7 % |" in page
    assert "| progress | path | 1 of 2 (1.3 to 98.7 %) | – |" in page


def test_the_page_is_what_was_recorded() -> None:
    page = report.page(recorded.load(), escapes.load(escapes_report.RECORDED))
    assert report.PAGE.read_text(encoding="utf-8") == page


def test_an_allowance_is_said_on_the_page() -> None:
    page = report.page([Recorded("small", [RUN], [HONEST, FORGED])])
    assert "millionths" not in page
    page = report.page([Recorded("small", [RUN], [replace(HONEST, tolerance=1000)])])
    assert "allow a deviation of 1000 millionths" in page


def test_rows_that_were_recorded_before_a_column_was_added_are_read(tmp_path: Path) -> None:
    path = recorded.record("small", written(tmp_path / "lines", HONEST), tmp_path)
    value = json.loads(path.read_text())
    value["columns"].remove("tolerance")
    value["rows"] = [line[:-1] for line in value["rows"]]
    path.write_text(json.dumps(value))
    assert recorded.load(tmp_path)[0].rows == [HONEST]


def test_escapes_are_compared_with_what_was_stated(tmp_path: Path) -> None:
    honest = Escape("honest", "sgd", 0, 660, 24, 0, 1.0, 300, 300, 2, 2)
    skipped = Escape("skipping", "sgd", 0, 660, 24, 66, 0.0776, 300, 21, 2, 0)
    lines = [{"run": RUN}, {"escape": asdict(honest)}, {"escape": asdict(skipped)}]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    escapes.record(tmp_path / "lines", tmp_path / "escapes.json")
    found = escapes.load(tmp_path / "escapes.json")
    assert found == ([RUN], [honest, skipped])
    page = report.page([], found)
    assert (
        "| skipping | sgd | 66 of 660 | 24 | 7.8 % | 21 of 300 | 4.4 to 10.5 % | 0 of 2 |" in page
    )
    assert "| honest | sgd | 0 of 660 | 24 | – | – | – | 2 of 2 |" in page
    assert "Chances of escape" not in report.page([], escapes.load(tmp_path / "none"))


def test_what_is_recorded_is_small_and_complete() -> None:
    for experiment in recorded.load():
        path = recorded.FOLDER / f"effort-{experiment.name}.json"
        assert path.stat().st_size < 300_000
        assert [row for row in experiment.rows if row.outcome == rows.ERROR] == []
