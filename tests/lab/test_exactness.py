"""Steps run again in other processes: what counts as exact, and what is said where it is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from polo_lab.effort import afresh
from polo_lab.effort.catalogue import Key
from polo_lab.experiments import catalogue, exactness, lines
from polo_lab.experiments.lines import Line, Recording

KEY = Key("cancer", "adam", "cosine", 0)
FIGURES = {
    "where": "A", "on_gpu": False, "killed": 196, "steps": 336, "segments": 168, "run": 30,
    "exact": 30, "rerun": 60, "sealings": 2, "outcome": "accepted", "headline": "ACCEPTED",
}  # fmt: skip


def line(**figures: object) -> Line:
    settings = exactness._unit("cancer", "adam", afresh.ANY)
    return Line("exactness", settings, lines.DONE, {**FIGURES, **figures}, {}, "")


def test_a_run_counts_as_exact_if_all_of_it_came_out_to_the_bit() -> None:
    assert not exactness.wrong(line())
    assert exactness.wrong(line(exact=29))
    assert exactness.wrong(line(outcome="rejected", exact=0))


def test_kernels_are_told_where_there_are_any_to_choose_from() -> None:
    gpu = replace(line(where="B", on_gpu=True), settings=exactness._unit("x", "y", "repeating"))
    [table] = exactness.tables(Recording([line(), gpu]))
    cells = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [(row["where"], row["kernels"]) for row in cells] == [("A", "–"), ("B", "repeating")]
    assert cells[0]["segments run again"] == "30 of 168"
    assert not list(exactness.sections(Recording()))


def test_training_dies_in_the_middle_of_a_shard(tmp_path: Path) -> None:
    case = KEY.case(tmp_path)
    shard = case.plan.shard_steps(case.samples)
    assert 0 < afresh.last_step(case) % shard < shard - 1
    assert shard < afresh.last_step(case) < case.steps - shard


def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"judge ended with 1: [\s\S]*challenge"):
        exactness._done("judge", KEY, tmp_path, afresh.ANY)


def test_a_stage_that_was_to_be_killed_and_was_not_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness.sys, "executable", "/bin/true")
    with pytest.raises(RuntimeError, match="begin ended with 0"):
        exactness._done("begin", KEY, tmp_path, afresh.ANY)


def test_all_that_is_recorded_is_a_unit() -> None:
    units = {lines.key_of(unit) for unit in catalogue.find("exactness").units(False)}
    recorded = lines.read(lines.path_of("exactness", lines.FOLDER)).lines
    assert {lines.key_of(one.settings) for one in recorded} <= units
    assert not any(exactness.wrong(one) for one in recorded)
