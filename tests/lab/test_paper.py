"""The paper's tables: what is kept of the paper, what our lines become beside it."""

from dataclasses import replace
from pathlib import Path

import pytest

from polo_lab.experiments import catalogue, lines
from polo_lab.experiments.experiment import Bench
from polo_lab.experiments.lines import DONE, Line, Recording
from polo_lab.experiments.paper import (
    claims,
    cost,
    eta_ver,
    fidelity,
    page,
    published,
    sweeps,
    timing,
)
from polo_lab.experiments.paper.pairs import GRID, HEADLINE, LONG, PAIRS

ROW = {
    "data": "CIFAR-10", "weights": 11_173_962, "plain_accuracy": 0.95, "accuracy": 0.948,
    "shards": 100, "shard_rate": 1.0, "reached": [0.9, 0.8], "sealed": [1.0], "accepted": True,
}  # fmt: skip
TIMES = {
    "plain": 200.0, "test": 0.1, "training": 210.0, "embedding": 4.0, "sealing": 5.0,
    "verify_none": 3.0, "verify_sample": 4.0, "verify_all": 12.0,
}  # fmt: skip


def fidelity_line(**changes: object) -> Line:
    settings = {"pair": HEADLINE, "scheme": "riga", "bits": 2048, "epochs": LONG, "seed": 0}
    return Line("fidelity", settings, DONE, {**ROW, **changes}, TIMES)


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
    units = list(fidelity.units(False))
    assert len({lines.key_of(unit) for unit in units}) == len(units)


def test_ours_stands_beside_the_papers() -> None:
    [table, _] = fidelity.tables(Recording([fidelity_line()]))
    [row] = table.rows
    cells = dict(zip(table.head, row, strict=True))
    assert cells["less plain"] == "-0.2"
    assert cells["the paper's |s|"] == "37.6 %"
    assert cells["of bare tests"] == "1.20 ×"
    assert cells["η by training alone"] == "85.0 %"


def test_what_does_not_hold_in_the_paper_is_said() -> None:
    told = "\n".join(claims.of_the_paper())
    assert "lies above 4 of its own 24 rates" in told
    assert "1.03 to 4.54 times generation" in told
    assert "in 14 of 24 cells" in told
    assert "25031.45 s in one cell, and with a proof by hashes on top 2504.65 s" in told
    assert "90 shards in 101 epochs are 89.11 %, not 88.51 %" in told
    assert told.count("shards in") == 1


def test_what_is_missed_is_said() -> None:
    found = {name: Recording() for name in page.NAMES}
    assert list(claims.of_ours(found)) == []
    lost = fidelity_line(accuracy=0.93)
    crashed = replace(lost, settings={**lost.settings, "seed": 1}, ended=lines.CRASHED, note="oh")
    found["fidelity"] = Recording([lost, crashed])
    told = "\n".join(claims.of_ours(found))
    assert "at most half a point below plain training in 0 of 1 rows" in told
    assert "2.0 points are lost" in told
    assert "crashed. oh" in told
    assert "at most 2% of training in 1 of 1 rows" in told


def test_what_two_experiments_show_is_said_once() -> None:
    found = {name: Recording() for name in page.NAMES}
    crashed = Line("ofa-wma", {"seed": 0}, lines.CRASHED, note="oh")
    found["ofa-wma"] = found["attack-curves"] = Recording([crashed])
    assert list(claims.of_ours(found)) == ["ofa-wma, seed=0: crashed. oh"]


def test_nothing_is_said_that_lines_do_not_show() -> None:
    found = {name: Recording() for name in page.NAMES}
    found["fidelity"] = Recording([fidelity_line(shard_rate=0.4)])
    assert "do not come out" not in "\n".join(claims.of_ours(found))
    row = {
        "attack": "wma-least", "thief_accepted": True, "owner_first": False,
        "claim": {"claimed": True}, "honest_accuracy": 0.9, "accuracy_last": 0.85,
        "attack_seconds": 1.0, "honest_seconds": 2.0,
    }  # fmt: skip
    found = {name: Recording() for name in page.NAMES}
    found["ofa-wma"] = Recording([Line("ofa-wma", {"seed": 0}, DONE, row)])
    told = "\n".join(claims.of_ours(found))
    assert "at 5.0 points of accuracy at most" in told
    assert "names the owner first in 0 of 1" in told


def test_speed_against_replay_is_taken_from_the_lines() -> None:
    settings = {"pair": HEADLINE, "bits": 0, "scheme": "none", "epochs": LONG, "seed": 0}
    lines_ = [
        Line("timing", {**settings, "method": "pol-vanilla"}, DONE, {}, {"verify_all": 200.0}),
        Line(
            "timing", {**settings, "method": "polo", "bits": 2048}, DONE, {},
            {"verify_all": 10.0, "verify_sampled": 5.0},
        ),
    ]  # fmt: skip
    found = {name: Recording() for name in page.NAMES} | {"timing": Recording(lines_)}
    [told] = claims.of_ours(found)
    assert "takes 20.0 times as long" in told
    assert "40.0 times" in told


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


def test_cost_is_priced_from_recorded_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FOLDER", tmp_path)
    gpu = {"gpu": "NVIDIA H200", "packages": {}}
    lines.add(tmp_path / "fidelity.jsonl", replace(fidelity_line(), machine=gpu))
    [unit] = cost.units(False)
    made = cost.measure(unit, Bench(tmp_path))
    assert made.figures["usd"]["training"] == pytest.approx(210 * 3.5 / 3600)
    [table] = cost.tables(Recording([Line("cost", unit, DONE, made.figures, made.timings)]))
    assert "0.639 USD an hour" in table.words
