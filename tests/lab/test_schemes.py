"""The experiment on schemes: what is trained, measured, recorded and written."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polo.errors import PoloError
from polo_lab.experiments import schemes, schemes_report, schemes_rows
from polo_lab.experiments.__main__ import main
from polo_lab.experiments.schemes_rows import PLAIN, Recorded, Row
from polo_lab.schemes import courses
from polo_lab.schemes.courses import COURSES, Course, Loop
from polo_lab.schemes.training import train_plain
from polo_lab.tasks import DigitsMLP
from polo_lab.tasks.cifar_varied import varied

RUN = {
    "machine": {"cpu": "A", "cores": 2, "gpu": "", "python": "3.11", "packages": {"torch": "2"}},
    "command": "python -m polo_lab.experiments schemes",
    "workers": 1,
    "began": "2026-01-01T00:00:00+00:00",
}
UNMARKED = Row("digits", PLAIN, 0, 0, 0, 1, epochs=12, accuracy=0.97, plain_accuracy=0.97)
MARKED = Row(
    "digits", "ednn", 256, 125_000, 1000, 1, share=0.03, epochs=12, shards=12,
    accuracy=0.96, plain_accuracy=0.97, reached=0.9, sealed=1.0, edit=0.2,
    residual_least=0.9, residual_mean=0.95, residual_log2_p=-900.0,
    thief_least=0.8, thief_mean=0.9, thief_log2_p=-500.0, thief_accuracy=0.95, claimed=True,
    forge_edit=0.25, forged=0.959, forged_estimated=0.958, least_edit=0.05, least_forged=0.96,
    told=0.5, told_low=0.4, told_high=0.6, told_blocks=100,
)  # fmt: skip


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A course of two epochs in the place of the digits."""
    course = Course(DigitsMLP, "two epochs of digits", epochs=2, rate=0.1, thief=1)
    monkeypatch.setitem(courses.COURSES, "digits", course)


def written(path: Path, *found: Row) -> Path:
    lines = [{"run": RUN}, *({"row": row.to_json()} for row in found)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    headers, found = schemes_rows.read(written(tmp_path / "lines", UNMARKED, MARKED))
    assert headers == [RUN]
    assert found == [UNMARKED, MARKED]


def test_recording_keeps_the_last_training_that_did_not_break(tmp_path: Path) -> None:
    broken = replace(MARKED, problem="RuntimeError: no")
    lines = written(tmp_path / "lines", broken, MARKED, UNMARKED, broken)
    schemes_rows.record("small", lines, tmp_path)
    assert schemes_rows.load(tmp_path) == [Recorded("small", [RUN], [MARKED, UNMARKED])]


def test_every_kind_is_a_unit_and_each_seed_has_its_unmarked_training(tmp_path: Path) -> None:
    work = schemes.units(
        tasks=["digits", "norms"], schemes=["ednn", "signed"], bits=[256, 512],
        loads=[None, 0.125], strengths=[None], seeds=3, plain=tmp_path,
    )  # fmt: skip
    names = [(unit.row.scheme, unit.row.load) for unit in work]
    assert names.count((PLAIN, 0)) == 6
    # The default load of ednn is the other one that was asked for: no training runs twice.
    assert names.count(("ednn", 125_000)) == 12
    assert len([name for name, _ in names if name == "signed"]) == 24


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_training_is_measured_recorded_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    asked = ["schemes", "--task", "digits", "--scheme", "ednn", "fedipr", "--bits", "256"]
    asked += ["--strength", "0.02", "--seeds", "1", "--workers", "0", "--out", str(out)]
    assert main(asked) == 0
    rows = {row.scheme: row for row in schemes_rows.read(out)[1]}
    marked = rows["ednn"]
    assert marked.problem == ""
    assert marked.shards >= 1
    assert marked.sealed is not None
    assert marked.sealed >= 0.99
    assert marked.residual_log2_p is not None
    assert marked.residual_log2_p < -64
    assert marked.claimed
    assert marked.least_edit is not None
    assert marked.forge_edit is not None
    assert 0 < marked.least_edit < marked.forge_edit
    assert marked.plain_accuracy == rows[PLAIN].accuracy
    assert rows["fedipr"].problem.startswith(schemes.UNFIT)
    capsys.readouterr()
    assert main(asked) == 0
    assert len(schemes_rows.read(out)[1]) == 3, "nothing was left to do"


@pytest.mark.usefixtures("short")
def test_a_training_that_breaks_is_recorded_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaking(*_: object) -> None:
        raise PoloError("the disk is full")

    monkeypatch.setattr(schemes, "train_plain", breaking)
    unit = schemes.Unit(Row("digits", PLAIN, 0, 0, 0, 0), tmp_path / "plain")
    assert schemes.run([unit], workers=0, out=tmp_path / "rows") == 1
    assert "the disk is full" in schemes_rows.read(tmp_path / "rows")[1][0].problem
    monkeypatch.setattr(schemes, "train_plain", train_plain)
    assert schemes.run([unit], workers=0, out=tmp_path / "rows") == 0
    kept = schemes_rows.settled(schemes_rows.read(tmp_path / "rows")[1])
    assert [row.problem for row in kept] == [""]
    capsys.readouterr()


def test_the_rate_falls_to_zero() -> None:
    course = replace(COURSES["norms"], epochs=2, batch=512)
    task = course.task()
    model = task.build_model()
    optimizer = course.optimizer(model)
    loop = Loop(task, course, torch.device("cpu"))
    rates = []
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    for _ in range(2):
        loop.falling_epoch(model, optimizer)
    assert len(rates) == 6
    assert rates[0] == course.rate
    assert np.allclose(np.diff(rates), -course.rate / 6)


def test_images_are_shifted_and_mirrored_one_by_one() -> None:
    torch.manual_seed(0)
    image = torch.arange(3 * 32 * 32).reshape(1, 3, 32, 32) % 251 + 1
    several = varied(image.repeat(400, 1, 1, 1))
    assert several.shape == (400, 3, 32, 32)
    distinct = {tuple(one.flatten().tolist()) for one in several}
    assert len(distinct) > 100, "nine shifts down, nine across, mirrored or not"
    whole = [one for one in several if not bool((one == 0).any())]
    assert all(torch.equal(one, image[0]) or torch.equal(one, image[0].flip(-1)) for one in whole)
    inner = image[0, :, 10:20, 10:20].flatten().sort().values
    kept = [one for one in several[:20] if set(inner.tolist()) <= set(one.flatten().tolist())]
    assert len(kept) == 20, "the middle of an image is never cut off"


def test_the_page_says_what_holds_and_what_does_not() -> None:
    free = replace(MARKED, scheme="signed", accuracy=0.97, shards=6, claimed=False)
    rows = [UNMARKED, *(replace(MARKED, seed=at, accuracy=0.954 + at / 1000) for at in range(3))]
    rows += [free, replace(free, seed=2)]
    page = schemes_report.page([Recorded("small", [RUN], rows)])
    assert "The most is lost with 256 bits at 0.125, λ = 0.001: 1.5 points" in page
    assert "**signed**: of 1 cases accuracy stays within half a point of unmarked training" in page
    assert "Not every epoch ends in a shard" in page
    assert "| ednn | 256 | 0.125 | 0.001 | 3.0% | -1.5 ± 0.2 | 1.00 |" in page
    assert "the owner is named in 0 of 2 models" in page
    assert "No classifier told its blocks from unmarked ones." in page


def test_one_seed_settles_nothing_about_accuracy() -> None:
    page = schemes_report.page([Recorded("small", [RUN], [UNMARKED, MARKED])])
    assert "in 0, falls by more in 0, and is not settled by so few seeds in 1." in page


def test_the_page_shows_what_was_refused() -> None:
    refused = replace(MARKED, scheme="fedipr", problem=f"{schemes.UNFIT}no norm scales")
    page = schemes_report.page([Recorded("small", [RUN], [UNMARKED, MARKED, refused])])
    assert "- fedipr, 256 bits at 0.125: no norm scales" in page
    assert "| fedipr | 256 |" not in page.partition("## Small")[2]


def test_the_page_is_what_was_recorded() -> None:
    page = schemes_report.page(schemes_rows.load())
    assert schemes_report.PAGE.read_text(encoding="utf-8") == page


def test_what_is_recorded_is_complete() -> None:
    for experiment in schemes_rows.load():
        broken = [r.problem for r in experiment.rows if r.problem]
        assert [why for why in broken if not why.startswith(schemes.UNFIT)] == []
