"""Honest runs are accepted at every level, attacks are not: end to end, on every small task."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from polo.storage.folder import ProofFolder
from polo_lab.attacks.effort import ATTACKS
from polo_lab.effort.case import Attempt, Case
from polo_lab.effort.catalogue import SMALL, Key
from polo_lab.effort.judging import judge
from polo_lab.effort.training import respond
from polo_lab.experiments import catalogue, effort, lines
from polo_lab.experiments.effort_rows import Row
from polo_lab.experiments.experiment import Bench

FORGED = "inflation from a drawn start"
LEVELS = {"chain", "start", "progress", "replay"}
LETTERS = pytest.param("letters", marks=pytest.mark.full)
TASKS = [LETTERS if task == "letters" else task for task in sorted(SMALL)]

Cases = Callable[[str], Case]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """A case of each task; its honest run is trained once."""
    made: dict[str, Case] = {}

    def case(task: str) -> Case:
        if task not in made:
            key = Key(task, "adam", "warmup", seed=11)
            made[task] = key.case(tmp_path_factory.mktemp(task))
        return made[task]

    return case


def honest(case: Case) -> Attempt:
    victim = case.victim
    return Attempt(victim.proof, respond(case.task, victim), victim.seconds, victim.steps)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_an_honest_run_is_accepted_at_every_level(cases: Cases, task: str, tmp_path: Path) -> None:
    case = cases(task)
    found = judge(case, honest(case), tmp_path / "answer")
    assert found.outcome == "accepted", found.headline
    assert found.levels == dict.fromkeys(LEVELS, "passed")
    assert found.faults == ()
    assert found.silence == ""
    assert found.steps == case.steps
    assert 0 < found.replayed < case.steps
    assert found.accuracy == pytest.approx(case.victim.accuracy, abs=1e-6)
    assert 0 < found.replaying < found.verifying
    assert case.victim.waiting < case.victim.proving < case.victim.seconds


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [FORGED, "interpolation, straight", "few real steps, 20%"])
def test_a_cheap_attack_is_rejected(cases: Cases, task: str, name: str, tmp_path: Path) -> None:
    case = cases(task)
    attempt = next(attack for attack in ATTACKS if attack.name == name).run(case, tmp_path / name)
    found = judge(case, attempt, tmp_path / "answer")
    assert attempt.gradient_steps < case.steps / 2
    assert found.outcome == "rejected", found.headline
    assert found.levels["replay"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cancer", LETTERS])
def test_an_honest_run_is_accepted_on_another_machine(task: str, tmp_path: Path) -> None:
    case = Key(task, "momentum", "cosine", 3, 1000).case(tmp_path / "case")
    found = judge(case, honest(case), tmp_path / "answer", away=True)
    assert found.outcome == "accepted", found.headline
    # Without an allowance the same machine leaves it open: it does round otherwise.
    strict = Key(task, "momentum", "cosine", 3).case(tmp_path / "strict")
    found = judge(strict, honest(strict), tmp_path / "other", away=True)
    assert (found.outcome, found.levels["replay"]) == ("undecided", "undecided")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["varied", "relabelled"])
def test_an_allowance_lets_no_near_copies_through(kind: str, tmp_path: Path) -> None:
    case = Key("cancer", "momentum", "cosine", 3, 1000).case(tmp_path / "case")
    attack = next(a for a in ATTACKS if a.name == f"tiny subset of 16, {kind} copies")
    attempt = attack.run(case, tmp_path / "proof")
    assert attempt.gradient_steps < case.steps / 2
    found = judge(case, attempt, tmp_path / "answer")
    assert found.outcome == "rejected"
    assert "replay/copies" in found.faults
    # What it computes is as near as rounding: no segment fails.
    assert "replay/segment" not in found.faults


def test_the_long_plan_has_many_segments_for_each_draw(tmp_path: Path) -> None:
    case = Key("digits-long", "sgd", "constant", 0).case(tmp_path)
    assert case.plan.recipe(case.samples).segments(case.steps) >= 20 * case.plan.draws


@pytest.mark.slow
def test_who_stays_silent_is_rejected(cases: Cases, tmp_path: Path) -> None:
    case = cases("cancer")
    found = judge(case, replace(honest(case), respond=None), tmp_path / "answer")
    assert (found.outcome, found.faults[0]) == ("rejected", "replay/segment")
    assert found.silence == "stayed silent"


@pytest.mark.slow
def test_a_case_is_drawn_from_its_seed(cases: Cases, tmp_path: Path) -> None:
    case = cases("cancer")
    again, other = (Key("cancer", "adam", "warmup", seed).case(tmp_path) for seed in (11, 12))
    records = [item.enrol("victim").enrolment.record for item in (case, again, other)]
    assert records[0] == records[1] == ProofFolder(case.victim.proof).manifest().enrolment
    assert records[2].digest != records[0].digest
    assert case.enrolled.key.public_key != case.victim.who.key.public_key


def test_work_is_spread_over_the_cases() -> None:
    work = effort.units(60, 60, attacks=["a", "b"])
    counts = {name: sum(unit["attack"] == name for unit in work) for name in ("honest", "a", "b")}
    assert counts == {"honest": 60, "a": 30, "b": 30}
    assert work == effort.units(60, 60, attacks=["a", "b"])
    assert len({unit["task"] for unit in work if unit["attack"] == "a"}) == len(SMALL)
    more = effort.units(60, 100, attacks=["a", "b"])
    assert sum(unit["attack"] == "a" for unit in more) == 50
    allowed = effort.units(60, 60, attacks=["a", "b"], tolerance=1000)
    assert {unit["tolerance"] for unit in allowed} == {1000}
    with pytest.raises(ValueError, match="as many honest runs"):
        effort.units(10, 60, attacks=["a"])


def test_what_was_recorded_is_what_would_be_run() -> None:
    for name in ("effort", "effort-resnet18"):
        units = {lines.key_of(unit) for unit in catalogue.find(name).units(False)}
        found = {line.key for line in lines.read(lines.path_of(name, lines.FOLDER)).lines}
        assert found <= units, name


def test_what_one_run_leaves_behind_goes_before_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left: list[Path] = []

    def measured(case: Case, key: Key, name: str, folder: Path) -> Row:
        folder.mkdir()
        left.append(folder)
        return Row(key.task, key.optimizer, key.schedule, key.seed, name, "rejected")

    monkeypatch.setattr(effort, "_measured", measured)
    [settings, *_] = effort.units(1, 1, tasks=("cancer",), attacks=["a"], per_attack=1)
    assert effort.measure(settings, Bench(tmp_path)).figures["outcome"] == "rejected"
    assert not left[0].parent.exists()
