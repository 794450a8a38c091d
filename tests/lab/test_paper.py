"""The paper's tables: what is kept of the paper, what our lines become beside it."""

from dataclasses import replace
from pathlib import Path

import pytest

from polo.errors import CapacityError, MissingError
from polo_lab.baselines import plain
from polo_lab.baselines.job import Job
from polo_lab.experiments import catalogue, experiment, harness, lines, machine
from polo_lab.experiments.experiment import Bench
from polo_lab.experiments.lines import DONE, REFUSED, Line, Recording
from polo_lab.experiments.paper import (
    claims,
    comparison,
    cost,
    eta_ver,
    fidelity,
    findings,
    forgery,
    page,
    published,
    subject,
    sweeps,
    targets,
    timing,
)
from polo_lab.experiments.paper.pairs import GRID, HEADLINE, LONG, PAIRS, QUICK
from polo_lab.experiments.paper.subject import Subject

ROW = {
    "data": "CIFAR-10", "weights": 11_173_962, "accuracy": 0.948, "shards": 100, "shard_rate": 1.0,
    "reached": [0.9, 0.8], "sealed": [1.0], "accepted": True, "compiled": "reduce-overhead",
    "problem": "",
}  # fmt: skip
TIMES = {
    "test": 0.1, "training": 210.0, "embedding": 4.0, "sealing": 5.0, "tests": 10.0,
    "verify_none": 3.0, "verify_sample": 4.0, "verify_all": 12.0,
}  # fmt: skip


def fidelity_line(**changes: object) -> Line:
    settings = {"pair": HEADLINE, "scheme": "riga", "bits": 2048, "epochs": LONG, "seed": 0}
    return Line("fidelity", settings, DONE, {**ROW, **changes}, TIMES)


def plain_line(accuracy: float = 0.95, **changes: object) -> Line:
    settings = {"pair": HEADLINE, "scheme": "none", "bits": 0, "epochs": LONG, "seed": 0}
    times = {"training": 200.0, "test": 0.1}
    return Line("fidelity", settings, DONE, {**ROW, "accuracy": accuracy, **changes}, times)


def found_with(**recordings: Recording) -> dict[str, Recording]:
    named = {name.replace("_", "-"): recording for name, recording in recordings.items()}
    return {name: Recording() for name in page.NAMES} | named


def told(**recordings: Recording) -> str:
    return "\n".join(findings.of_ours(found_with(**recordings)))


def aimed(**recordings: Recording) -> list[str]:
    return list(targets.of_ours(found_with(**recordings)))


def test_all_cells_of_the_paper_are_kept() -> None:
    assert len(published.table("fidelity")) == 3 * 3 * 8
    assert len(published.table("timing")) == 3 * 8
    assert len(published.table("ofa-wma")) == 3 * 8
    assert len(published.table("llm")) == 9
    where = {"pair": "resnet18/cifar-10", "scheme": "riga", "bits": 2048}
    assert published.figure("fidelity", "shard_rate", **where) == 37.62
    assert published.figure("fidelity", "no such", **where) is None


def test_every_pair_has_a_task_and_a_place_in_the_paper() -> None:
    known = {row.settings["pair"] for row in published.table("timing")}
    assert {PAIRS[name].paper for name in GRID} == known
    for pair in PAIRS.values():
        assert pair.task.course.rate > 0
        assert ":" in pair.job(1, 0)["task"]


def test_sweeps_are_of_the_scheme_that_the_papers_are_of() -> None:
    """It does not say; the rate that both of its tables have is RIGA's alone."""
    for pair, rate in (("resnet18/cifar-10", 0.1), ("textcnn/ag-news", 0.005)):
        swept = published.figure("learning-rate", "shard_rate", pair=pair, rate=rate)
        where = {"pair": pair, "scheme": sweeps.SCHEME, "bits": 1024}
        assert published.figure("fidelity", "shard_rate", **where) == pytest.approx(swept, abs=0.02)


def test_the_headline_comes_first() -> None:
    for name in ("fidelity", "timing"):
        first = next(iter(catalogue.find(name).units(False)))
        assert (first["pair"], first["epochs"]) == (HEADLINE, LONG)
    for name in ("fidelity", "timing"):
        units = list(catalogue.find(name).units(False))
        assert len({lines.key_of(unit) for unit in units}) == len(units)
        groups = harness._grouped(catalogue.find(name), units)
        sizes = [max(unit["bits"] for unit in group) for group in groups]
        assert sizes == sorted(sizes, reverse=True), "the largest size of all pairs comes first"


def test_ours_stands_beside_the_papers() -> None:
    [table, *_] = fidelity.tables(Recording([plain_line(), fidelity_line()]))
    [row] = table.rows
    cells = dict(zip(table.head, row, strict=True))
    assert cells["less plain"] == "-0.2"
    assert cells["of plain"] == "1.00 ×", "tests of shards are no part of it"
    assert cells["bare tests"] == "10 s"
    assert cells["the paper's |s|"] == "37.6 %"
    assert cells["of bare tests"] == "1.20 ×"
    assert cells["η by training alone"] == "85.0 %"


def test_marks_that_are_pressed_more_seldom_stand_after_the_usual_ones_and_nowhere_else() -> None:
    usual = fidelity_line()
    seldom = replace(
        fidelity_line(reached=[0.7, 0.8], accuracy=0.9), settings={**usual.settings, "every": 8}
    )
    [table, _, paces] = fidelity.tables(Recording([plain_line(), usual, seldom]))
    assert len(table.rows) == 1
    first, second = (dict(zip(paces.head, row, strict=True)) for row in paces.rows)
    every = "pressed every … steps"
    assert (first[every], first["less plain"]) == ("1", "-0.2")
    assert (second[every], second["less plain"]) == ("8", "-5.0")
    assert second["η by training alone, median and range"] == "75.0 % (70.0 to 80.0)"
    assert "points are lost" not in told(fidelity=Recording([plain_line(), usual, seldom]))
    made = [unit for unit in fidelity.units(False) if "every" in unit]
    assert [unit["scheme"] for unit in made] == ["ednn", "riga", "fedipr-kernel"]


def test_what_does_not_hold_in_the_paper_is_said() -> None:
    told = "\n".join(claims.of_the_paper())
    assert "lies above 4 of its own 24 rates" in told
    assert "1.03 to 4.54 times generation" in told
    assert "in 14 of 24 cells" in told
    assert "25031.45 s in one cell, and with a proof by hashes on top 2504.65 s" in told
    assert "90 shards in 101 epochs are 89.11 %, not 88.51 %" in told
    assert told.count("shards in") == 1


def test_times_are_compared_with_those_of_as_busy_a_machine() -> None:
    shared = replace(fidelity_line(), workers=4)
    [table, *_] = fidelity.tables(Recording([plain_line(), shared]))
    cells = dict(zip(table.head, table.rows[0], strict=True))
    assert (cells["less plain"], cells["of plain"]) == ("-0.2", "–")
    [table, *_] = fidelity.tables(Recording([fidelity_line()]))
    cells = dict(zip(table.head, table.rows[0], strict=True))
    assert (cells["less plain"], cells["of plain"]) == ("–", "–")


def test_further_slips_of_the_paper_are_said() -> None:
    said = "\n".join(claims.of_the_paper())
    assert "vanilla's add 0.5 % to it at most, and less than PoLO's in 24 of 24 cells" in said
    assert "1.5 to 10 % of training; in its table more in 4 of 24 cells, up to 20.1 %" in said
    assert "takes 79.5 to 98.6 % in its table, outside of that in 9 of 24 cells" in said
    assert "stay above 91.48 %; the lowest reads 91.15 %" in said
    assert "is said to cost 0.01 USD; by those prices it is 0.002 USD" in said
    assert "they do not in 3 of 24 rows" in said


def test_what_a_proof_adds_to_training_is_said_beside_the_papers() -> None:
    said = told(fidelity=Recording([plain_line(), fidelity_line()]))
    assert "That a proof adds 0.1 to 3.1 % to training comes out" in said
    assert "training takes 1.00 to 1.00 times as long in 1 rows" in said
    assert "with the tests of all shards takes 5.7 to 5.7 % of generation" in said
    assert "schemes take equally long" not in said
    other = fidelity_line()
    other = replace(other, settings={**other.settings, "scheme": "ednn"})
    slower = replace(fidelity_line(), timings={**TIMES, "training": 300.0})
    said = told(fidelity=Recording([plain_line(), slower, other]))
    assert "2048 bits and 100 epochs: riga 290 s, ednn 200 s" in said
    assert "% to training does not come out: with it" in said


def test_marks_that_do_not_fit_are_said_with_what_the_paper_reports() -> None:
    settings = {**fidelity_line().settings, "scheme": "fedipr"}
    refused = Line("fidelity", settings, REFUSED, {}, {}, "do not fit")
    said = told(fidelity=Recording([refused]))
    assert "resnet18/cifar10, fedipr: 2048 bits do not fit into the norm scales" in said
    assert "reports shards in 40.59 % of epochs there" in said


def test_its_text_and_its_table_of_language_models_differ() -> None:
    said = "\n".join(claims.of_the_paper())
    assert "DialoGPT-medium-345M its text says 4.31 and 3.67 minutes of proof generation" in said
    assert "its table 0.63 and 0.67" in said
    assert "says 85.33 minutes of verification by replay, and its table 14.77" in said
    assert "LLaMA" not in said, "what agrees is not named"


def test_what_is_missed_is_said() -> None:
    assert told() == ""
    lost = fidelity_line(accuracy=0.93)
    crashed = replace(lost, settings={**lost.settings, "seed": 1}, ended=lines.CRASHED, note="oh")
    said = told(fidelity=Recording([plain_line(), lost, crashed]))
    assert "at most half a point below plain training in 0 of 1 rows" in said
    assert "2.0 points are lost" in said
    assert "crashed. oh" in said
    assert "at most 2% of training in 1;" in said


def test_a_run_that_could_not_be_compiled_is_seen() -> None:
    eager = fidelity_line(compiled="", problem="RuntimeError: no compiler\nmore")
    recording = Recording([plain_line(), eager])
    assert "in 1 of 2 runs of fidelity" in told(fidelity=recording)
    assert told(fidelity=recording).endswith("RuntimeError: no compiler")
    [table, *_] = fidelity.tables(recording)
    assert dict(zip(table.head, table.rows[0], strict=True))["compiled"] == "no"


def test_what_two_experiments_show_is_said_once() -> None:
    crashed = Recording([Line("ofa-wma", {"seed": 0}, lines.CRASHED, note="oh")])
    assert told(ofa_wma=crashed, attack_curves=crashed) == "ofa-wma, seed=0: crashed. oh"


def test_nothing_is_said_that_lines_do_not_show() -> None:
    assert "do not come out" not in told(fidelity=Recording([fidelity_line(shard_rate=0.4)]))
    stages = [
        {"accuracy_before": before, "accuracy": after}
        for before, after in ((0.9, 0.85), (0.92, 0.92))
    ]
    row = {
        "attack": "wma-least", "thief_accepted": True, "owner_first": False,
        "claim": {"claimed": True}, "honest_accuracy": 0.9, "stages": stages, "data": "digits",
        "attack_seconds": 1.0, "honest_seconds": 2.0,
    }  # fmt: skip
    said = told(ofa_wma=Recording([Line("ofa-wma", {"seed": 0}, DONE, row)]))
    assert "(digits), at 5.0 points of accuracy at most, over all checkpoints" in said
    assert "names the owner first in 0 of 1" in said
    assert "fluctuates" not in said
    for ruined, words in ((0.3, "1 of 2 checkpoints lose"), (0.9, "none loses more than 0.0")):
        stages[0]["accuracy"] = ruined
        said = told(ofa_wma=Recording([Line("ofa-wma", {}, DONE, {**row, "attack": "wma"})]))
        assert words in said


def test_what_was_not_run_is_said_before_anything_else(tmp_path: Path) -> None:
    text = "\n".join(page.sections(tmp_path))
    assert "- fidelity: 0 of 112 runs; shard rate" in text
    assert "attack-curves: " not in text.split("### What does not hold")[0], "the same lines"


def test_ticks_that_do_not_reproduce_are_named() -> None:
    held, lost = {"held": True, "why": "accepted: none"}, {"held": False, "why": "accepted: x"}
    recording = Recording(
        [
            Line("comparison", {"method": f"polo, {levels}"}, DONE, {"properties": own})
            for levels, own in (
                ("chain", {"reconstruction": lost, "no-data": held, "generation": lost}),
                ("all levels", {"reconstruction": held}),
            )
        ]
    )
    said = told(comparison=recording)
    assert "polo, chain: the paper's ticks do not reproduce: a way back from a finished" in said
    assert "the chain alone does not reject reconstruction." in said
    assert "progress and replay beside it reject reconstruction, at" in said
    assert "no training data" not in said, "what agrees is not named"
    assert "tenth of plain" not in said, "times of small models say nothing"


def test_a_cross_that_nothing_shows_is_not_said_to_be_refuted() -> None:
    held = {"held": True, "why": "accepted when sampled: none", "on": "tiny/digits, sgd, 6 epochs"}
    line = Line("comparison", {"method": "pol-vanilla"}, DONE, {"properties": {"synthetic": held}})
    said = told(comparison=Recording([line]))
    assert "do not reproduce" not in said
    assert "That refutes none of them" in said
    [_, reasons] = comparison.tables(Recording([line]))
    assert "tiny/digits, sgd, 6 epochs" in reasons.rows[0]


def test_proving_is_compared_with_plain_training_and_kept_in_seconds(tmp_path: Path) -> None:
    units = {unit["method"]: unit for unit in comparison.units(True)}
    bench = Bench(tmp_path, quick=True)
    for method in ("watermark-only", "polo, chain", "polo, all levels"):
        made = comparison.measure(units[method], bench)
        times, found = made.timings, made.figures["properties"]
        assert min(times.values()) > 0
        part = times["proving"] / times["plain"]
        assert found["generation"]["why"] == f"{part:.1%} of plain training"
        own = "lab-cancer, adam" if method == "polo, all levels" else "cancer, sgd"
        assert found["generation"]["on"].startswith(own)
        assert found["ownership"]["on"].startswith("cancer, sgd")
    assert found["synthetic"]["on"].startswith("lab-cancer, adam")


def swept(name: str, setting: str, rates: dict[float, float], *, finish: bool = False) -> Recording:
    return Recording(
        [
            Line(
                name,
                {"pair": HEADLINE, "rate": 0.1, "eta_g": 0.99, "finish": finish, "epochs": 20}
                | {setting: at},
                DONE,
                {"shard_rate": rate, "data": "CIFAR-10", "shards": 3, "accuracy": 0.9}
                | {"plain_accuracy": 0.9},
                {"training": 1.0},
            )
            for at, rate in rates.items()
        ]
    )


def test_sweeps_are_held_against_what_the_paper_says() -> None:
    said = told(learning_rate=swept("learning-rate", "rate", {0.1: 0.5, 0.01: 0.2, 0.2: 0.9}))
    assert "that more raises |s| comes out, by one run each: 20% at 0.01, 50% at 0.1, 90%" in said
    said = told(eta_g=swept("eta-g", "eta_g", {0.85: 0.5, 0.99: 0.7}))
    assert "that more lowers |s| does not come out" in said
    assert told(eta_g=swept("eta-g", "eta_g", {0.85: 0.5})) == ""


def test_runs_of_one_setting_are_told_by_their_median() -> None:
    lines_ = [
        replace(line, settings={**line.settings, "seed": seed})
        for seed, rates in enumerate(({0.85: 0.9, 0.99: 0.1}, {0.85: 0.5, 0.99: 0.0}, {0.85: 0.7}))
        for finish in (False, True)
        for line in swept("eta-g", "eta_g", rates, finish=finish).lines
    ]
    [table] = catalogue.find("eta-g").tables(Recording(lines_))
    cells = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [(cell["η_G"], cell["runs"]) for cell in cells[:2]] == [("0.85", "3"), ("0.99", "2")]
    assert cells[0]["|s|"] == "70.0 % (50.0 to 90.0)"
    said = told(eta_g=Recording(lines_))
    assert "comes out, by the median of 2 to 3 runs each: 70% at 0.85, 5% at 0.99" in said
    assert "of one and the same setting one run ends 50% and another 90% shards" in said
    [chart] = catalogue.find("eta-g").charts(Recording(lines_))
    assert [series.points for series in chart.series[:1]] == [[(0.85, 0.7), (0.99, 0.05)]]


def test_sweeps_are_made_with_the_finishing_edit_and_without() -> None:
    for name in ("learning-rate", "eta-g"):
        for quick in (True, False):
            units = list(catalogue.find(name).units(quick))
            bare = [{k: v for k, v in unit.items() if k != "finish"} for unit in units]
            assert [unit["finish"] for unit in units] == [True, False] * (len(units) // 2)
            assert bare[::2] == bare[1::2]
            assert len({lines.key_of(unit) for unit in units}) == len(units)


def test_runs_without_the_edit_are_not_set_beside_a_method_that_has_it() -> None:
    rates = {0.01: 1.0, 0.1: 1.0}
    both = [
        *swept("learning-rate", "rate", rates, finish=True).lines,
        *swept("learning-rate", "rate", {0.01: 0.2, 0.1: 0.4}).lines,
        *swept("learning-rate", "rate", {0.2: 0.0}).lines,
        *swept("learning-rate", "rate", {0.2: 1.0}, finish=True).lines,
    ]
    recording = Recording(both)
    [table] = catalogue.find("learning-rate").tables(recording)
    cells = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert {(cell["δW"], cell["the paper's |s|"] != "–") for cell in cells} == {
        ("with", True),
        ("without", False),
    }
    said = told(learning_rate=recording)
    assert (
        "without δW shards take 2.5 to 5.0 times as long, and for ever in 1 of 3 settings" in said
    )
    assert "the paper says 2 to 4 times" in said
    [chart] = catalogue.find("learning-rate").charts(recording)
    assert len(chart.series) == 4


def test_that_the_paper_has_a_finishing_step_is_said() -> None:
    [table, *_] = fidelity.tables(Recording([fidelity_line()]))
    assert "its perturbation δW" in table.words
    assert "the paper's δW" in told(fidelity=Recording([fidelity_line()]))


def test_smaller_sizes_of_a_pair_share_a_bench() -> None:
    """Each bench compiles its loop anew."""
    for name in ("fidelity", "timing"):
        experiment = catalogue.find(name)
        groups = harness._grouped(experiment, list(experiment.units(False)))
        assert len(groups) == 1 + 2 * len(GRID)


def test_what_recorded_runs_show_is_said() -> None:
    recorded = {name: catalogue.recorded(name, lines.FOLDER) for name in page.NAMES}
    said = "\n".join(findings.of_ours(recorded))
    for part in ("polo, chain: the paper's ticks", "eta-ver: no threshold", "llm, smollm2-135m"):
        assert part in said


def test_aims_of_the_headline_are_answered() -> None:
    assert aimed() == []
    recording = Recording([plain_line(0.9512), fidelity_line()])
    plain, marks, whole, again = aimed(fidelity=recording)
    assert "reaches 94.5% in 100 epochs: yes, 95.12%" in plain
    assert "at most 2% of generation: yes, 1.43% (3.00 s of 210.0 s)" in marks
    assert (
        "at most 1.3 times the bare tests: yes, 1.20 times (12.00 s; bare tests 10.00 s)" in whole
    )
    assert "5.71% of its own training, and 1.90% where shards are sampled" in whole
    assert "as fast as they were trained, sealing left out, would take 205.0 s" in again
    assert "15 times as fast as that: yes, 17.1 times" in again
    assert "sampled at least 50 times: yes, 51.2 times" in again
    [plain] = aimed(fidelity=Recording([plain_line(0.94), replace(fidelity_line(), workers=2)]))
    assert "no, 94.00%" in plain
    short = replace(fidelity_line(), settings={**fidelity_line().settings, "epochs": 20})
    assert aimed(fidelity=Recording([short])) == []


def timing_line(method: str, bits: int, times: dict[str, float], **more: object) -> Line:
    settings = {
        "pair": HEADLINE, "method": method, "bits": bits, "scheme": "ednn" if bits else "none",
        "epochs": LONG, "seed": 0, **more,
    }  # fmt: skip
    return Line("timing", settings, DONE, {"data": "CIFAR-10"}, times)


def test_speed_against_replay_is_taken_from_the_lines() -> None:
    full = timing_line("pol-vanilla", 0, {"verify_all": 200.0}, part="full")
    own = timing_line("polo", 2048, {"verify_all": 10.0, "verify_sampled": 5.0})
    [said] = aimed(timing=Recording([full, own]))
    assert "at least 15 times as fast as full replay, which takes 200.0 s: yes, 20.0 times" in said
    assert "at least 50 times: no, 40.0 times" in said
    both = aimed(timing=Recording([full]), fidelity=Recording([fidelity_line()]))
    assert not any("full replay" in said for said in both), "a compiled run is another engine's"
    other = replace(own, machine={"gpu": "NVIDIA H200"})
    assert aimed(timing=Recording([full, other])) == [], "another machine's"
    assert aimed(timing=Recording([own])) == []
    assert aimed(timing=Recording([replace(full, workers=3), own])) == []


def test_parts_of_a_run_become_one_row() -> None:
    took = {"proving_training": 90.0, "proving_hashing": 10.0}
    parts = Recording(
        [
            timing_line("pol-hash", 0, took, part="proving"),
            replace(timing_line("pol-hash", 0, {"verify_all": 95.0}, part="full"), workers=2),
        ]
    )
    [table, cited] = timing.tables(parts)
    [row] = table.rows
    cells = dict(zip(table.head, row, strict=True))
    assert (cells["training + proof"], cells["verified in full"]) == ("100 s", "95 s")
    assert (cells["sampled"], cells["at once"]) == ("–", "2")
    assert cited.rows


@pytest.mark.parametrize("method", timing.REPLAYED)
def test_a_long_run_is_taken_up_by_another_call(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(timing, "LONG", 1)
    unit = {"pair": QUICK, "method": method, "bits": 0, "scheme": "none", "epochs": 1, "seed": 0}
    made = {}
    for part in ("proving", "full", "sampled"):
        bench = Bench(tmp_path / part)
        made[part] = timing.measure({**unit, "part": part}, bench)
        assert bool(list((tmp_path / "kept").iterdir())) is (part != "sampled")
    assert made["proving"].timings["proving_training"] > 0
    for part, name in (("full", "verify_all"), ("sampled", "verify_sampled")):
        assert made[part].figures[name]["accepted"]
        assert made[part].timings[name] > 0
    monkeypatch.setattr(plain, "prove", lambda _: pytest.fail("trained before it was said"))
    for part in ("full", "sampled"):
        with pytest.raises(MissingError, match="no trajectory") as caught:
            timing.measure({**unit, "part": part}, Bench(tmp_path))
        assert "part=proving,full,sampled --rerun" in caught.value.advice
        with pytest.raises(MissingError, match="no trajectory"):
            timing.REPLAYED[method].run_part(PAIRS[QUICK].job(1, 0), tmp_path / "no", part)


def test_plain_training_is_not_repeated_where_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"pair": QUICK, "scheme": "none", "bits": 0, "epochs": 1, "seed": 0}
    known = Line("fidelity", settings, DONE, {"accuracy": 0.5}, machine=machine.describe())
    lines.add(tmp_path / "fidelity.jsonl", known)
    trained: list[Subject] = []

    def train(own: Subject) -> None:
        trained.append(own)
        raise CapacityError("trained")

    monkeypatch.setattr(subject, "train_plain", train)
    bench, own = Bench(tmp_path, results=tmp_path), Subject.of(settings)
    assert subject.plain_accuracy({**settings, "scheme": "riga"}, own, bench) == 0.5
    assert not trained
    for other in ({"seed": 1}, {"epochs": 2}, {"rate": 0.5}):
        with pytest.raises(CapacityError):
            subject.plain_accuracy({**settings, **other}, own, bench)


def test_a_bare_test_is_that_of_a_model_built_anew() -> None:
    own = Subject.of({"pair": QUICK, "epochs": 1, "seed": 0})
    passes = subject.bare_tests(own, own.start().model)
    assert len(passes) == 5
    assert min(passes) > 0


def test_all_runs_of_a_subject_begin_alike_in_one_loop(tmp_path: Path) -> None:
    own = Subject.of({"pair": QUICK, "epochs": 1, "seed": 0})
    plain = [subject.train_plain(own).accuracy]
    marked = subject.train_marked(own, subject.Marking("ednn", 256), tmp_path / "proof")
    assert marked.model is own.start().model
    assert subject.verified(marked, "none")[0]
    plain.append(subject.train_plain(own).accuracy)
    again = subject.train_plain(Subject.of({"pair": QUICK, "epochs": 1, "seed": 0}))
    assert plain == [again.accuracy] * 2


def test_texts_are_trained_with_the_optimizer_that_learns_them() -> None:
    for name in GRID:
        job, course = Job.of(PAIRS[name].job(1, 0)), PAIRS[name].task.course
        assert (job.optimizer, job.decay) == (course.optimizer, course.decay)
    assert Job.of(PAIRS["minibert/agnews"].job(1, 0)).optimizer == "adamw"


def test_curves_are_of_the_largest_size() -> None:
    stage = {
        "shard": 1, "accuracy_before": 0.9, "accuracy": 0.8, "owner_eta": 1.0, "thief_eta": 1.0,
        "seconds": 1.0,
    }  # fmt: skip
    settings = {"pair": HEADLINE, "attack": "wma", "epochs": 1, "seed": 0}
    figures = {"stages": [stage], "honest_accuracies": [0.9]}
    recording = Recording(
        [Line("ofa-wma", {**settings, "bits": bits}, DONE, figures) for bits in (2048, 512)]
    )
    [table] = forgery.curve_tables(recording)
    assert [row[1] for row in table.rows] == ["2048"]
    assert len(forgery.charts(recording)) == 1


def test_what_is_cited_is_on_the_page_before_anything_was_timed(tmp_path: Path) -> None:
    text = "\n".join(page.sections(tmp_path))
    assert "Zero-knowledge proof of training, cited" in text
    assert "### What was aimed at" not in text


def test_an_honest_proof_that_is_refused_is_wrong() -> None:
    assert fidelity.wrong(fidelity_line(accepted=False))
    assert not fidelity.wrong(fidelity_line())
    bad = Line("timing", {}, DONE, {"verify_all": {"accepted": False}})
    assert "verify_all" in timing.wrong(bad)


def test_acceptance_falls_with_the_threshold() -> None:
    etas = {"sealed": [1.0, 0.99], "stranger": [0.5, 0.52], "ofa": [0.65, 0.9]}
    line = Line("eta-ver", {"seed": 0}, DONE, {"etas": etas})
    [table] = eta_ver.tables(Recording([line]))
    sealed = next(row for row in table.rows if row[0] == eta_ver.KINDS["sealed"])
    assert sealed[-1] == "50 %"
    assert sealed[3] == "100 %"
    assert "read at least 0.990, strangers at most 0.520" in table.words
    assert "1 of 2 attacked marks" in table.words
    [chart] = eta_ver.charts(Recording([line]))
    assert len(chart.series) == 3
    assert eta_ver.accepted([], 0.5) is None


def test_thresholds_that_tell_nothing_apart_are_said_to() -> None:
    etas = {"sealed": [0.99, 0.6], "stranger": [0.7], "forged-ofa": [0.5, 0.65]}
    [table] = eta_ver.tables(Recording([Line("eta-ver", {"seed": 0}, DONE, {"etas": etas})]))
    assert "no threshold tells one from the other" in table.words
    assert "0 of 2 forged marks pass it, and 1 read as well" in table.words


def test_cost_is_priced_from_recorded_seconds(tmp_path: Path) -> None:
    gpu = {"gpu": "NVIDIA H200", "packages": {}}
    shared = replace(fidelity_line(), workers=2, settings={**fidelity_line().settings, "seed": 1})
    for line in (plain_line(), fidelity_line(), shared):
        lines.add(tmp_path / "fidelity.jsonl", replace(line, machine=gpu))
    units = list(catalogue.find("cost").units_of(False, tmp_path))
    assert len(units) == 2, "one of a machine that was shared has no price"
    bench = Bench(tmp_path, results=tmp_path)
    plain, made = (cost.measure(unit, bench) for unit in units)
    assert plain.figures["usd"] == {"plain": pytest.approx(200 * 3.5 / 3600)}
    assert made.figures["usd"]["training"] == pytest.approx(210 * 3.5 / 3600)
    priced = Line("cost", units[1], DONE, made.figures, made.timings)
    [table] = cost.tables(Recording([priced]))
    assert "0.639 USD an hour" in table.words
    again = replace(priced, settings={**units[1], "began": "2026"}, timings={"training": 1.0})
    for order in ([priced, again], [again, priced]):
        [table] = cost.tables(Recording(order))
        assert [row[2:4] for row in table.rows] == [("training with PoLO", "1")]


def test_a_run_that_was_repeated_is_priced_again(tmp_path: Path) -> None:
    line = replace(fidelity_line(), machine={"gpu": "", "packages": {}}, began="2026-01-01")
    lines.add(tmp_path / "fidelity.jsonl", line)
    [before] = catalogue.find("cost").units_of(False, tmp_path)
    lines.add(tmp_path / "fidelity.jsonl", replace(line, began="2026-01-02"))
    [after] = catalogue.find("cost").units_of(False, tmp_path)
    assert lines.key_of(before) != lines.key_of(after)
