"""What the benchmarks of the hook make of their samples."""

import gc
from functools import partial
from random import Random

import pytest
from benchmarks import hook, measure, rare
from benchmarks.figures import Target, paired_of

PLAIN = [1.00, 1.02, 0.98, 1.01, 0.99, 1.00, 1.02, 0.98]


def test_a_press_in_eight_steps_is_told_by_both_sides_together() -> None:
    samples = {"rarely": [value * 1.02 for value in PLAIN], "plain": PLAIN}
    figure = paired_of("ednn, every 8 steps", samples, "rarely", "plain")
    together = hook.rarely(figure, [value * 1.08 for value in PLAIN], 8)
    assert together.value is not None
    # A press costs 2 % of a block by one side and 1 % by the other, which says it 8 times as well.
    assert together.value.median == pytest.approx(1 + (0.02 + 8 * 0.08) / 65)


@pytest.mark.parametrize(("noise", "rounds"), [(0.0, 60), (0.5, 200)])
def test_noise_decides_how_many_rounds_there_are(
    noise: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, random, order = [0.0], Random(1), []

    def side(name: str, seconds: float) -> None:
        order.append(name)
        clock[0] += seconds * (1 + noise * random.random())

    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    sides = {"with": partial(side, "with", 1.02), "without": partial(side, "without", 1.0)}
    for samples in measure.until_narrow(sides, "with", "without", least=60, most=200):
        found = samples
    assert [len(seconds) for seconds in found.values()] == [rounds, rounds]
    assert measure.paired(found["with"], found["without"]).median == pytest.approx(1.02, abs=0.05)
    # Each is the first as often as the other.
    assert abs(order[::2].count("with") - order[::2].count("without")) <= 1


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A single scheme, so that it is soon done; its target."""
    monkeypatch.setattr(rare, "TARGETS", {"fedipr": hook.TARGETS["fedipr"]})
    return hook.TARGETS["fedipr"]


def test_what_is_measured_directly_is_held_against_the_same_target(one: Target) -> None:
    found = list(rare.run(quick=True))
    assert [figure.name for figure in found] == [
        f"fedipr, once in 8 steps, {loop} loop" for loop in ("eager", "compiled")
    ]
    for figure in found:
        assert figure.target == one
        assert figure.value is not None, figure.note
        assert [len(seconds) for seconds in figure.samples.values()] == [2, 2]
    assert gc.isenabled()


def test_a_compiler_that_fails_costs_its_own_figures_only(
    one: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = hook.Training.begin

    def broken(quick: bool, size: hook.Size, *, compiled: bool = False) -> hook.Training:
        training = begin(quick, size)
        if compiled:
            training.loss = lambda images, labels: images.no_such_method()
        return training

    monkeypatch.setattr(hook.Training, "begin", broken)
    fine, failed = rare.run(quick=True)
    assert (failed.value, failed.met, failed.target) == (None, None, one)
    assert "no_such_method" in failed.note
    assert fine.value is not None
