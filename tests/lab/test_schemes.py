"""The experiment on schemes: what is trained, measured, recorded and written."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polo.enrolment import millionths
from polo.watermark.schemes import SCHEMES
from polo_lab.experiments import lines, pages, schemes, schemes_report
from polo_lab.experiments.experiment import Bench
from polo_lab.experiments.lines import Line, Recording
from polo_lab.experiments.schemes_rows import PLAIN, UNFIT, Row
from polo_lab.schemes import courses
from polo_lab.schemes.courses import COURSES, Further, Subject
from polo_lab.tasks import DigitsMLP
from polo_lab.training import Augmentation, Course
from polo_lab.training.varying import varied

RUN = {
    "machine": {"cpu": "A", "cores": 2, "gpu": "", "python": "3.11", "packages": {"torch": "2"}},
    "command": "polo-lab run schemes",
    "workers": 1,
    "began": "2026-01-01T00:00:00+00:00",
}
UNMARKED = Row("digits", PLAIN, 0, 0, 0, 1, epochs=12, accuracy=0.97, plain_accuracy=0.97)
MARKED = Row(
    "digits", "ednn", 256, 125_000, 1000, 1, 400_000, share=0.03, epochs=12, shards=12,
    accuracy=0.96, plain_accuracy=0.97, reached=0.9, sealed=1.0, edit=0.2,
    residual_least=0.9, residual_mean=0.95, residual_log2_p=-900.0,
    thief_least=0.8, thief_mean=0.9, thief_log2_p=-500.0, thief_accuracy=0.95, claimed=True,
    forge_edit=0.25, forged=0.959, forged_estimated=0.958, least_edit=0.05, least_forged=0.96,
    told=0.5, told_low=0.4, told_high=0.6, told_blocks=100,
)  # fmt: skip


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A course of two epochs in the place of the digits."""
    course = Course(epochs=2, rate=0.1, batch=64, nesterov=False)
    subject = Subject(DigitsMLP, "two epochs of digits", course, thief=1)
    monkeypatch.setitem(courses.COURSES, "digits", subject)


def line_of(row: Row) -> Line:
    if row.problem:
        note = row.problem.removeprefix(UNFIT)
        return Line("schemes", row.settings(), lines.REFUSED, note=note)
    return Line("schemes", row.settings(), lines.DONE, row.figures(), row.timings())


def page_of(*rows: Row) -> str:
    return schemes_report.page({"small": Recording([line_of(row) for row in rows], [RUN])})


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    unfit = replace(UNMARKED, scheme="fedipr", problem=f"{UNFIT}no norm scales", epochs=0)
    unfit = replace(unfit, accuracy=None, plain_accuracy=None)
    for row in (UNMARKED, MARKED, unfit):
        lines.add(tmp_path / "lines", line_of(row))
    found = [Row.of(line) for line in lines.read(tmp_path / "lines").lines]
    assert found == [UNMARKED, MARKED, unfit]


def test_every_kind_is_a_unit_and_each_seed_has_its_unmarked_training() -> None:
    work = schemes.units(
        tasks=["digits", "norms"], schemes=["ednn", "signed"], bits=[256, 512],
        loads=[None, 0.125], seeds=3,
    )  # fmt: skip
    names = [(unit["scheme"], unit["load"]) for unit in work]
    assert names.count((PLAIN, 0)) == 6
    # The default load of ednn is the other one that was asked for: no training runs twice.
    assert names.count(("ednn", 125_000)) == 12
    assert len([name for name, _ in names if name == "signed"]) == 24


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_training_is_measured_beside_the_unmarked_one(tmp_path: Path) -> None:
    work = schemes.units(tasks=["digits"], schemes=["ednn"], bits=[256], strengths=[0.02], seeds=1)
    bench = Bench(tmp_path)
    unmarked, marked = (schemes.measure(unit, bench) for unit in work)
    assert marked.figures["shards"] >= 1
    assert marked.figures["sealed"] >= 0.99
    assert marked.figures["residual_log2_p"] < -64
    assert marked.figures["claimed"]
    assert 0 < marked.figures["least_edit"] < marked.figures["forge_edit"]
    assert marked.figures["plain_accuracy"] == unmarked.figures["accuracy"]
    assert marked.timings["plain_seconds"] == unmarked.timings["seconds"]


def test_a_thief_trains_on_at_the_full_rate() -> None:
    course = replace(COURSES["norms"].course, batch=512)
    subject = replace(COURSES["norms"], course=course, thief=2)
    task = subject.task()
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rates = []
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    further = Further(task, subject, seed=0)
    for _ in range(2):
        further.epoch(model, optimizer)
    assert rates == [course.rate] * 4


def test_images_of_a_step_are_shifted_and_mirrored_one_by_one() -> None:
    torch.manual_seed(0)
    image = torch.arange(3 * 32 * 32).reshape(1, 32, 32, 3) % 251 + 1
    several = varied(image.repeat(400, 1, 1, 1), Augmentation(4, "constant"))
    assert several.shape == (400, 32, 32, 3)
    distinct = {tuple(one.flatten().tolist()) for one in several}
    assert len(distinct) > 100, "nine shifts down, nine across, mirrored or not"
    whole = [one for one in several if not bool((one == 0).any())]
    assert all(torch.equal(one, image[0]) or torch.equal(one, image[0].flip(1)) for one in whole)
    inner = image[0, 10:20, 10:20].flatten().sort().values
    kept = [one for one in several[:20] if set(inner.tolist()) <= set(one.flatten().tolist())]
    assert len(kept) == 20, "the middle of an image is never cut off"


def test_the_page_says_what_holds_and_what_does_not() -> None:
    free = replace(MARKED, scheme="signed", accuracy=0.97, shards=6, claimed=False)
    rows = [UNMARKED, *(replace(MARKED, seed=at, accuracy=0.954 + at / 1000) for at in range(3))]
    rows += [free, replace(free, seed=2)]
    page = page_of(*rows)
    assert "The most is lost with 256 bits at 0.125, λ = 0.001: 1.5 points" in page
    assert "**signed**: of 1 case accuracy stays within half a point of unmarked training" in page
    assert "Not every epoch ends in a shard" in page
    assert "| ednn | 256 | 0.125 | 0.001 | 0.4 | 3.0% | -1.5 ± 0.2 | 1.00 |" in page
    assert "the owner is named in 0 of 2 models" in page
    assert "No classifier told its blocks from unmarked ones." in page


def test_a_sweep_has_the_seeds_that_all_of_its_rows_have() -> None:
    light = replace(MARKED, load=31_250, accuracy=0.95)
    more = [replace(MARKED, seed=seed, accuracy=0.90) for seed in (2, 3)]
    page = page_of(UNMARKED, light, MARKED, *more)
    sweep = page.split("#### By load")[1].split("####")[0]
    assert "| ednn | 256 | 0.03125 | 0.001 | 0.4 | -2.0 |" in sweep
    assert "| ednn | 256 | 0.125 | 0.001 | 0.4 | -1.0 |" in sweep, "seeds 2 and 3 have no light one"


def test_loads_are_compared_size_by_size() -> None:
    light = replace(MARKED, load=31_250, edit=0.1, residual_mean=0.99, thief_mean=0.8)
    heavy = replace(MARKED, load=500_000, edit=0.4, shards=6, residual_mean=0.9, thief_mean=0.95)
    alone = replace(light, bits=512, edit=0.9)
    page = page_of(UNMARKED, MARKED, light, heavy, alone)
    assert (
        "Marks lighter than a scheme's own load, in 1 case: 0 seal fewer shards than at its own; "
        "accuracy is more than half a point better in 0 and worse in 0; the finishing step's edit "
        "is smaller in 1; marks in the finished model read better in 1, and after overwriting in 0."
    ) in page
    assert "heavier than a scheme's own load, in 1 case: 1 seal fewer" in page
    assert page.split("By load")[1].split("####")[0].count("| ednn |") == 3, (
        "512 bits at one load are compared with nothing"
    )
    assert (
        "| ednn | 256 | 0.5 | 0.001 | 0.4 | -1.0 | 0.50 | 0.40 | 0.900 | 0.950 | 1 of 1 |" in page
    )
    assert "By λ" not in page


def test_settings_are_compared_on_the_seeds_that_both_have() -> None:
    # Better on both common seeds; worse if the seeds of one alone were counted, too.
    usual = [
        replace(MARKED, seed=seed, accuracy=accuracy, edit=edit, residual_mean=eta, shards=shards)
        for seed, accuracy, edit, eta, shards in (
            (1, 0.95, 0.3, 0.90, 9), (2, 0.95, 0.3, 0.90, 9), (3, 0.99, 0.1, 0.99, 12),
            (4, 0.99, 0.1, 0.99, 12), (5, 0.99, 0.1, 0.99, 12),
        )
    ]  # fmt: skip
    light = [
        replace(row, load=31_250, accuracy=0.97, edit=0.2, residual_mean=0.95, shards=10)
        for row in usual[:2]
    ]
    # The second has no thief, and the thief's marks are compared on the first alone.
    light[1] = replace(light[1], thief_mean=None)
    usual[1] = replace(usual[1], thief_mean=0.99)
    light[0] = replace(light[0], thief_mean=0.91)
    page = page_of(UNMARKED, *usual, *light)
    assert (
        "Marks lighter than a scheme's own load, in 1 case: 0 seal fewer shards than at its own; "
        "accuracy is more than half a point better in 1 and worse in 0; the finishing step's edit "
        "is smaller in 1; marks in the finished model read better in 1, and after overwriting in 1."
    ) in page
    other = [replace(row, seed=9) for row in light[:1]]
    assert "Marks lighter" not in page_of(UNMARKED, *usual, *other)


def test_strengths_are_compared_at_one_load() -> None:
    strong = replace(MARKED, strength=10_000, accuracy=0.9)
    page = page_of(UNMARKED, MARKED, strong)
    assert "By load" not in page
    assert "| ednn | 256 | 0.125 | 0.01 | 0.4 | -7.0 |" in page


def test_budgets_are_compared_at_one_load_and_strength() -> None:
    small = replace(MARKED, budget=100_000, accuracy=0.969, shards=7)
    page = page_of(UNMARKED, MARKED, small)
    section = page.split("By finishing budget")[1].split("####")[0]
    assert "| ednn | 256 | 0.125 | 0.001 | 0.1 | -0.1 | 0.58 |" in section
    assert "| ednn | 256 | 0.125 | 0.001 | 0.4 | -1.0 | 1.00 |" in section


def test_one_seed_settles_nothing_about_accuracy() -> None:
    page = page_of(UNMARKED, MARKED)
    assert "of 1 case with one seed, which settles nothing, accuracy is within half a point" in page
    page = page_of(UNMARKED, replace(MARKED, accuracy=0.9))
    assert "in 0. The most is lost with 256 bits at 0.125, λ = 0.001: 7.0 points." in page


def test_where_no_setting_keeps_accuracy_the_page_says_what_costs_least() -> None:
    strong = replace(MARKED, strength=10_000, accuracy=0.93)
    heavy = replace(MARKED, load=500_000, accuracy=0.95)
    fine = replace(MARKED, bits=512, accuracy=0.97)
    page = page_of(UNMARKED, MARKED, strong, heavy, fine)
    assert (
        "The least that a size costs is 1.0 points with 256 bits at 0.125, λ = 0.001. A stronger λ "
        "with all else the same costs less in 0 of 1 comparison. A heavier load, on fewer blocks, "
        "with all else the same costs less in 0 of 1 comparison."
    ) in page
    assert "The least that a size costs" not in page_of(UNMARKED, replace(MARKED, accuracy=0.97))


def test_the_page_shows_what_was_refused() -> None:
    refused = replace(MARKED, scheme="fedipr", problem=f"{UNFIT}no norm scales")
    page = page_of(UNMARKED, MARKED, refused)
    assert "- fedipr, 256 bits at 0.125: no norm scales" in page
    assert "| fedipr | 256 |" not in page.partition("## Small")[2]


def test_models_that_marks_ruined_are_named_where_they_do_not_count() -> None:
    assert "their own marks had cost" not in page_of(UNMARKED, MARKED)
    ruined = replace(MARKED, scheme="signed", accuracy=0.9, least_forged=0.5)
    page = page_of(UNMARKED, MARKED, ruined)
    assert "1 model that their own marks had cost more than 2 points (signed on digits)" in page
    assert "less than half a point in 1 of 1 models, and at most 0.0 points" in page


def test_a_training_that_diverged_is_no_row_of_a_table() -> None:
    lost = Line("schemes", MARKED.settings(), lines.DIVERGED, note="the loss is nan")
    page = schemes_report.page({"small": Recording([line_of(UNMARKED), lost], [RUN])})
    assert "- ednn, 256 bits at 0.125: the loss is nan" in page


def test_the_page_is_what_was_recorded() -> None:
    page = (pages.FOLDER / "schemes.md").read_text(encoding="utf-8")
    assert page == pages.schemes_page(), "run polo-lab docs"


def test_nothing_that_is_recorded_about_schemes_broke() -> None:
    found = lines.read(lines.path_of("schemes", lines.FOLDER))
    assert {line.ended for line in found.lines} == {lines.DONE, lines.REFUSED}


def test_every_default_is_a_setting_that_was_measured() -> None:
    found = lines.read(lines.path_of("schemes", lines.FOLDER)).done
    names = ("scheme", "bits", "load", "strength", "budget")
    done = {tuple(line.settings[name] for name in names) for line in found}
    for name, scheme in SCHEMES.items():
        own = scheme.defaults
        asked = (name, own.bits, *map(millionths, (own.load, own.strength, own.budget)))
        assert asked in done, name
