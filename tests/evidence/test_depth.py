"""Which slopes matter to where a segment ends."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import polo
from polo.evidence.replay import depth
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.engine import Engine, Shard
from polo.evidence.replay.recipe import Recipe
from polo.protocol import nonces
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import checkpoint_of

Depths = Callable[..., float]
FIRST = 4
"""The step that slopes are taken of, after a few at a usual rate."""


@dataclass(frozen=True)
class Begun:
    """An engine at the start of a segment, the segment's first batch, and its slopes."""

    engine: Engine
    batch: Any
    slopes: dict[str, torch.Tensor]


@pytest.fixture
def begin(task: Any, recipe_of: Callable[..., Any]) -> Callable[..., Begun]:
    """A segment after a few steps at a usual rate."""

    def make(*, steps: int = 3, **options: Any) -> Begun:
        recipe = recipe_of(every=steps, schedule="steps", milestones=(FIRST,), **options)
        source = DataSource(task.train_columns(), secret=bytes(32))
        terms = polo.make_terms(task, bits=128, replay=recipe, data=source.root, start="derived")
        carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
        torch.manual_seed(0)
        engine = Engine(task, terms, carrier, recipe)
        _, drawn = nonces.draw(4, random.Random(0).randbytes)
        engine.enter(Shard(1, bytes(32), 0, drawn[0]))
        batches = [source.batch(engine.order.batch(step)) for step in range(FIRST + 1)]
        engine.run(0, iter(batches[:FIRST]))
        return Begun(engine, batches[FIRST], engine.copied_slopes(FIRST, batches[FIRST]))

    return make


@pytest.fixture
def deep(begin: Callable[..., Begun]) -> Depths:
    """The part of a segment's slopes that must be computed."""

    def measure(*, forgiven: float = 0.0, steps: int = 3, **options: Any) -> float:
        begun = begin(steps=steps, **options)
        slopes = begun.slopes
        found, near = begun.engine.depths(FIRST, steps, begun.batch, slopes, forgiven=forgiven)
        assert found.keys() == slopes.keys()
        if near:
            return 0.0
        sizes = {name: int((slope != 0).sum()) for name, slope in slopes.items()}
        return sum(found[name] * sizes[name] for name in found) / sum(sizes.values())

    return measure


PLAIN = {"optimizer": "sgd", "momentum": 0.0, "rate": 0.05}
KINDS = {
    "plain": PLAIN,
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "rate": 0.02},
    "nesterov": {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "rate": 0.02},
    "adam": {"optimizer": "adam", "rate": 0.002},
    "decay": {"optimizer": "adamw", "rate": 0.002, "decay": 0.01},
}


@pytest.mark.parametrize("name", KINDS)
def test_all_slopes_matter_at_usual_rates(name: str, deep: Depths) -> None:
    assert deep(gamma=0.3, **KINDS[name]) > 0.95


@pytest.mark.parametrize("name", ["plain", "momentum", "nesterov", "adam"])
def test_no_slope_matters_where_weights_stand_still(name: str, deep: Depths) -> None:
    """Whatever the optimizer keeps: what was computed once of such weights can be used again."""
    assert deep(gamma=0.000_000_000_001, **KINDS[name]) == 0


def test_last_digits_alone_do_not_tell_a_slope(deep: Depths) -> None:
    assert deep(gamma=0.000_000_6, **PLAIN) < 0.1


def test_an_optimizer_that_forgets_tells_no_more_than_its_weights(deep: Depths) -> None:
    """Of Adam without memory the last step of a segment is known, and no other."""
    forgetful = {"optimizer": "adam", "rate": 0.002, "betas": (0.0, 0.0), "gamma": 0.000_01}
    assert deep(steps=1, **forgetful) > 0.9
    assert deep(steps=3, **forgetful) < 0.1


def test_what_is_forgiven_does_not_matter(deep: Depths) -> None:
    assert deep(gamma=0.001, **KINDS["momentum"]) > 0.95
    assert deep(gamma=0.001, forgiven=0.05, **KINDS["momentum"]) == 0
    assert deep(gamma=0.3, forgiven=0.000_1, **PLAIN) > 0.95


def test_both_ends_are_reached_by_the_segments_own_steps(
    begin: Callable[..., Begun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batch with the same randomness, each step at its rate, old by a whole pass."""
    begun = begin(gamma=0.3, **PLAIN)
    passes: list[int] = []
    rates: list[int] = []
    ages: list[float] = []
    slopes, set_rate, aged = begun.engine.slopes, Recipe.set_rate, depth.aged
    monkeypatch.setattr(
        begun.engine, "slopes", lambda step, batch: (passes.append(step), slopes(step, batch))[1]
    )
    monkeypatch.setattr(
        Recipe, "set_rate", lambda own, *given: (rates.append(given[1]), set_rate(own, *given))[1]
    )
    monkeypatch.setattr(depth, "aged", lambda *given: (ages.append(given[2]), aged(*given))[1])
    begun.engine.depths(FIRST, 3, begun.batch, begun.slopes)
    assert passes == [FIRST]
    assert rates == [4, 5, 6, 4, 5, 6]
    assert ages == [pytest.approx(8 / 3)]


def test_slopes_stay_as_they_are_whatever_an_optimizer_does_to_gradients(
    begin: Callable[..., Begun], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begin(gamma=0.3, **PLAIN)
    before = {name: slope.clone() for name, slope in begun.slopes.items()}
    step = begun.engine.optimizer.step

    def spoiling() -> None:
        step()
        for parameter in begun.engine.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    monkeypatch.setattr(begun.engine.optimizer, "step", spoiling)
    begun.engine.depths(FIRST, 3, begun.batch, begun.slopes)
    assert all(torch.equal(before[name], slope) for name, slope in begun.slopes.items())


def test_where_no_step_can_be_taken_from_slopes_are_other_ones(
    begin: Callable[..., Begun], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begin(gamma=0.000_000_000_001, **PLAIN)
    engine, asked = begun.engine, (FIRST, 3, begun.batch, begun.slopes)

    def refusing(step: int, batch: Any) -> dict[str, torch.Tensor]:
        raise FloatingPointError("loss is no number")

    def endless(step: int, batch: Any) -> dict[str, torch.Tensor]:
        return {name: slope * torch.inf for name, slope in begun.slopes.items()}

    def without_memory(step: int, batch: Any) -> dict[str, torch.Tensor]:
        raise torch.OutOfMemoryError("no memory")

    for instead in (refusing, endless):
        monkeypatch.setattr(engine, "slopes", instead)
        assert engine.depths(*asked) == (dict.fromkeys(begun.slopes, 1.0), False)
        assert engine.stumbled, "whatever the task has done is not gone on with"
    monkeypatch.setattr(engine, "slopes", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        engine.depths(*asked)


def test_a_few_slopes_that_matter_ask_for_all_products() -> None:
    """Whoever must compute some of a layer's has to pass through all of it."""
    slopes = {"w": torch.ones(32), "v": torch.ones(32)}
    ended = {"w": torch.zeros(32), "v": torch.zeros(32)}, {"momentum/v": torch.zeros(32)}
    moved = torch.zeros(32)
    moved[0] = 1
    otherwise = {"w": moved, "v": torch.zeros(32)}, {"momentum/v": torch.ones(32)}
    assert depth.depths(slopes, ended, otherwise) == {"w": 0.5, "v": 1.0}
    assert depth.depths(slopes, ended, ended) == {"w": 0.0, "v": 0.0}


def test_slopes_are_aged_in_a_straight_line() -> None:
    now, later = (
        {"a": torch.tensor([1.0, 2.0]), "b": torch.ones(1)},
        {"a": torch.tensor([1.5, 2.0])},
    )
    found = depth.aged(now, later, 4.0)
    assert found["a"].tolist() == [3.0, 2.0]
    assert found["b"].tolist() == [1.0]
