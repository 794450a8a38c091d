"""Which slopes matter to where a segment ends."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import polo
from polo.evidence.replay import depth
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.engine import Engine, Shard
from polo.protocol import nonces
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import checkpoint_of

Depths = Callable[..., float]


@pytest.fixture
def deep(task: Any, recipe_of: Callable[..., Any]) -> Depths:
    """The part of a first segment's slopes that matter, after a few steps at a usual rate."""

    def measure(*, forgiven: float = 0.0, steps: int = 3, **options: Any) -> float:
        recipe = recipe_of(every=steps, schedule="steps", milestones=(4,), **options)
        source = DataSource(task.train_columns(), secret=bytes(32))
        terms = polo.make_terms(task, bits=128, replay=recipe, data=source.root, start="derived")
        carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
        torch.manual_seed(0)
        engine = Engine(task, terms, carrier, recipe)
        _, drawn = nonces.draw(4, random.Random(0).randbytes)
        engine.enter(Shard(1, bytes(32), 0, drawn[0]))
        batches = [source.batch(engine.order.batch(step)) for step in range(5)]
        engine.run(0, iter(batches[:4]))
        slopes = engine.copied_slopes(4, batches[4])
        found = engine.depths(4, steps, batches[4], slopes, forgiven=forgiven)
        assert found.keys() == slopes.keys()
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


def test_slopes_are_aged_in_a_straight_line() -> None:
    now, later = (
        {"a": torch.tensor([1.0, 2.0]), "b": torch.ones(1)},
        {"a": torch.tensor([1.5, 2.0])},
    )
    found = depth.aged(now, later, 4.0)
    assert found["a"].tolist() == [3.0, 2.0]
    assert found["b"].tolist() == [1.0]
