"""The recipe: settings there and back, rates, optimizers, and mistakes in any of them."""

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from polo.errors import TermsError
from polo.evidence.replay.recipe import KINDS, Recipe, draws_for
from polo.evidence.settings import Whole

RECIPES: dict[str, Recipe] = {
    "plain": Recipe(samples=1000),
    "nesterov": Recipe(samples=10, batch=3, momentum=0.85, nesterov=True, decay=5e-4),
    "no momentum": Recipe(samples=1000, momentum=0.0, rate=0.1),
    "adam": Recipe(samples=1000, optimizer="adam", rate=1e-3, betas=(0.8, 0.99), eps=1e-7),
    "adamw": Recipe(samples=1000, optimizer="adamw", rate=3e-4, decay=0.05),
    "cosine": Recipe(samples=1000, schedule="cosine", total=500, warmup=20),
    "linear": Recipe(samples=1000, schedule="linear", total=77),
    "steps": Recipe(samples=1000, schedule="steps", milestones=(10, 20), gamma=0.3),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_settings_say_all_of_it(recipe: Recipe) -> None:
    settings = recipe.to_settings()
    assert Recipe.from_settings(settings, "terms") == recipe
    assert recipe.changed() == recipe
    assert recipe.changed(batch=2) != recipe
    assert all(len(value) <= 256 for value in settings.values())
    assert not {"optimizer", "rate", "every", "draws"} - settings.keys()


def test_a_number_may_be_spelt_in_several_ways() -> None:
    settings = RECIPES["adam"].to_settings()
    for text in ("0.001", "1e-3", "1e-03", "0.0010"):
        assert Recipe.from_settings({**settings, "rate": text}, "terms").peak == 0.001


@pytest.mark.parametrize("key", sorted(KINDS))
def test_a_missing_setting_is_named(key: str) -> None:
    for recipe in RECIPES.values():
        settings = recipe.to_settings()
        if settings.pop(key, None) is not None:
            with pytest.raises(TermsError) as error:
                Recipe.from_settings(settings, "terms")
            assert error.value.place == f"terms.{key}"


@pytest.mark.parametrize(
    ("base", "key", "text"),
    [
        ("plain", "speed", "1"),
        ("plain", "betas", "0.9 0.999"),
        ("plain", "total", "10"),
        ("adam", "momentum", "0.9"),
        ("cosine", "gamma", "0.1"),
        ("plain", "batch", "0"),
        ("plain", "batch", "1001"),
        ("plain", "batch", "1.0"),
        ("plain", "batch", " 1"),
        ("plain", "batch", "\u0663"),
        ("plain", "batch", "9" * 256),
        ("plain", "samples", str(2**25 + 1)),
        ("plain", "rate", "0"),
        ("plain", "rate", "1e6"),
        ("plain", "rate", "1e400"),
        ("plain", "rate", "inf"),
        ("plain", "rate", "nan"),
        ("plain", "rate", "-1"),
        ("plain", "rate", "1_0"),
        ("plain", "rate", ""),
        ("plain", "momentum", "1.0"),
        ("plain", "nesterov", "1"),
        ("no momentum", "nesterov", "true"),
        ("adam", "betas", "0.9"),
        ("adam", "betas", "0.9,0.999"),
        ("adam", "betas", "0.9 1.0"),
        ("adam", "betas", "0.9  0.999"),
        ("adam", "eps", "0.0"),
        ("plain", "optimizer", "lion"),
        ("plain", "optimizer", "cosine"),
        ("plain", "schedule", "sgd"),
        ("cosine", "total", "20"),
        ("steps", "milestones", ""),
        ("steps", "milestones", "20 10"),
        ("steps", "milestones", " ".join(map(str, range(1, 22)))),
        ("steps", "gamma", "1.0"),
        ("plain", "loss", "two words"),
        ("plain", "every", "0"),
        ("plain", "draws", "0"),
        ("plain", "tolerance", "1000001"),
    ],
)
def test_a_bad_setting_is_named(base: str, key: str, text: str) -> None:
    with pytest.raises(TermsError) as error:
        Recipe.from_settings({**RECIPES[base].to_settings(), key: text}, "terms")
    assert error.value.place == f"terms.{key}"
    assert len(str(error.value)) < 400


@given(st.dictionaries(st.sampled_from(sorted(KINDS)), st.text(max_size=40)))
def test_any_other_text_is_refused_and_nothing_else_happens(changes: dict[str, str]) -> None:
    settings = {**RECIPES["cosine"].to_settings(), **changes}
    place = ""
    try:
        recipe = Recipe.from_settings(settings, "terms")
    except TermsError as error:
        place = error.place
    else:
        assert Recipe.from_settings(recipe.to_settings(), "terms") == recipe
        assert all(math.isfinite(recipe.rate(step)) for step in (0, 1, 10**6))
    assert not place or place.removeprefix("terms.") in KINDS


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "momentum": 0.5},
        {"total": 5},
        {"batch": True},
        {"batch": 2.0},
        {"rate": "0.1"},
        {"rate": math.nan},
        {"milestones": (1,)},
        {"schedule": "steps"},
        {"nesterov": 1},
        {"optimizer": None},
    ],
)
def test_what_a_person_may_not_write(options: dict[str, Any]) -> None:
    with pytest.raises(TermsError) as error:
        Recipe(samples=100, **options)
    assert error.value.place.removeprefix("recipe.") in {*options, "milestones"}


# Rates


def rates(recipe: Recipe, steps: int) -> list[float]:
    return [recipe.rate(step) for step in range(steps)]


def by_torch(make: Callable[[Any], Any], steps: int, rate: float) -> list[float]:
    """Rates of one of torch's schedulers."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_rates_are_those_of_torchs_schedulers() -> None:
    schedulers = torch.optim.lr_scheduler
    cosine = Recipe(samples=9, batch=1, schedule="cosine", total=50, rate=0.3)
    assert rates(cosine, 50) == pytest.approx(
        by_torch(lambda o: schedulers.CosineAnnealingLR(o, 50), 50, 0.3), rel=1e-12
    )
    steps = Recipe(samples=9, batch=1, schedule="steps", milestones=(5, 30), gamma=0.2, rate=0.3)
    assert rates(steps, 50) == pytest.approx(
        by_torch(lambda o: schedulers.MultiStepLR(o, [5, 30], 0.2), 50, 0.3), rel=1e-12
    )
    linear = Recipe(samples=9, batch=1, schedule="linear", total=50, rate=0.3)
    assert rates(linear, 50) == pytest.approx(
        by_torch(lambda o: schedulers.LinearLR(o, 1.0, 1e-9, 50), 50, 0.3), rel=1e-6
    )


def test_the_cosine_is_a_cosine() -> None:
    recipe = Recipe(samples=9, batch=1, schedule="cosine", total=10_000, rate=1.0)
    for step in range(0, 10_000, 7):
        wanted = (1 + math.cos(math.pi * step / 10_000)) / 2
        assert recipe.rate(step) == pytest.approx(wanted, abs=3e-16)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_rates_rise_then_fall_and_never_vanish(schedule: str, warmup: int) -> None:
    recipe = Recipe(samples=9, batch=1, schedule=schedule, total=40, warmup=warmup, rate=0.2)
    found = rates(recipe, 60)
    assert found[:warmup] == sorted(found[:warmup])
    assert found[max(warmup - 1, 0)] == max(found) == 0.2
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert found[39] == found[-1] == recipe.rate(10**9) > 0


def test_a_rate_is_set_in_every_group() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD([{"params": part.parameters()} for part in model], lr=9.0)
    recipe = RECIPES["cosine"]
    recipe.set_rate(optimizer, 100)
    assert [group["lr"] for group in optimizer.param_groups] == [recipe.rate(100)] * 2


# Optimizers


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 3))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> torch.Tensor:
    """All weights after a few steps."""
    generator = torch.Generator().manual_seed(1)
    for step in range(12):
        recipe.set_rate(optimizer, step)
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", ["plain", "nesterov", "no momentum", "adam", "adamw", "steps"])
def test_the_optimizer_rounds_as_the_plain_loop_does(name: str) -> None:
    recipe, model = RECIPES[name], small()
    found = trained(model, recipe.optimizer(model), recipe)
    for options in ({"foreach": False}, {"foreach": True}):
        other = small()
        optimizer = recipe.optimizer(other)
        optimizer.param_groups[0].update(options)
        assert torch.equal(trained(other, optimizer, recipe), found)


def test_one_that_a_user_made_fits() -> None:
    model = small()
    reversed_ = list(model.parameters())[::-1]
    fitting = {
        "plain": torch.optim.SGD(reversed_, lr=7.0, momentum=0.9),
        "adam": torch.optim.Adam(reversed_, lr=1, betas=(0.8, 0.99), eps=1e-7),
        "adamw": torch.optim.AdamW(model.parameters(), weight_decay=0.05),
    }
    for name, optimizer in fitting.items():
        RECIPES[name].check_optimizer(optimizer, model)
        RECIPES[name].set_rate(optimizer, 3)
        RECIPES[name].check_optimizer(optimizer, model)


def test_frozen_parameters_belong_to_nobody() -> None:
    model, recipe = small(), RECIPES["plain"]
    given = list(model.parameters())
    given[0].requires_grad_(False)
    assert len(recipe.optimizer(model).param_groups[0]["params"]) == 3
    with pytest.raises(TermsError, match="parameters: some that are not trained"):
        recipe.check_optimizer(torch.optim.SGD(given, lr=1, momentum=0.9), model)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    class Mine(torch.optim.SGD):
        pass

    model = small()
    every, sgd = list(model.parameters()), torch.optim.SGD
    wrong = {
        "class: Adam,": torch.optim.Adam(every),
        "class: Mine,": Mine(every, lr=1, momentum=0.9),
        "number of parameter groups: 2": sgd(
            [{"params": every[:2]}, {"params": every[2:]}], lr=1, momentum=0.9
        ),
        "parameters: none for 2.bias": sgd(every[:3], lr=1, momentum=0.9),
        "parameters: some": sgd([*every, nn.Parameter(torch.zeros(1))], lr=1, momentum=0.9),
        "momentum: 0.8,": sgd(every, lr=1, momentum=0.8),
        "weight_decay: 0.1,": sgd(every, lr=1, momentum=0.9, weight_decay=0.1),
        "dampening: 0.5,": sgd(every, lr=1, momentum=0.9, dampening=0.5),
        "nesterov: True,": sgd(every, lr=1, momentum=0.9, nesterov=True),
        "maximize: True,": sgd(every, lr=1, momentum=0.9, maximize=True),
        "fused: True,": sgd(every, lr=1, momentum=0.9, fused=True),
    }
    for why, optimizer in wrong.items():
        with pytest.raises(TermsError, match=re.escape(why)) as error:
            RECIPES["plain"].check_optimizer(optimizer, model)
        assert error.value.place == "optimizer"
    for why, other in {"amsgrad": {"amsgrad": True}, "betas": {"betas": (0.8, 0.98)}}.items():
        with pytest.raises(TermsError, match=why):
            RECIPES["adam"].check_optimizer(
                torch.optim.Adam(every, **{"betas": (0.8, 0.99), "eps": 1e-7, **other}), model
            )
    with pytest.raises(TermsError, match="class"):
        RECIPES["adamw"].check_optimizer(torch.optim.Adam(every, weight_decay=0.05), model)


def test_checking_leaves_the_optimizer_alone() -> None:
    recipe, model = RECIPES["adam"], small()
    optimizer = recipe.optimizer(model)
    trained(model, optimizer, recipe)
    before = copy.deepcopy(optimizer.state_dict())
    recipe.check_optimizer(optimizer, model)
    assert str(optimizer.state_dict()) == str(before)


# Counting


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (10, 3), (12, 3), (64, 64), (65, 64)])
def test_batches_of_a_pass_take_every_sample(samples: int, batch: int) -> None:
    recipe = Recipe(samples=samples, batch=batch)
    sizes = [recipe.batch_at(step) for step in range(recipe.steps_per_pass)]
    assert sum(sizes) == samples
    assert set(sizes[:-1]) <= {batch}
    assert recipe.batch_at(3 * recipe.steps_per_pass) == sizes[0]


def test_segments_cover_the_steps() -> None:
    recipe = Recipe(samples=9, batch=1, every=4)
    assert [recipe.segments(steps) for steps in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


@given(st.floats(0.001, 1.0), st.floats(0.0, 0.9999))
def test_as_few_draws_as_are_enough(fraction: float, probability: float) -> None:
    draws = draws_for(fraction, probability)
    assert 1 - (1 - fraction) ** draws >= probability - 1e-12
    assert draws == 1 or (1 - fraction) ** (draws - 1) > 1 - probability


def test_the_default_finds_a_tenth() -> None:
    recipe = Recipe(samples=100)
    assert recipe.draws == draws_for(0.1, 0.99)
    assert 0.9**recipe.draws < 0.01
    for wrong in ((0.0, 0.5), (1.1, 0.5), (0.5, 1.0), (0.5, -0.1)):
        with pytest.raises(ValueError, match="found with probability"):
            draws_for(*wrong)


# The specification


def test_the_specification_says_the_same() -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = text.partition("### 16.4")[2].partition("\n## ")[0]
    table, _, defaults = section.partition("**Default recipe.**")
    assert set(re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE)) == set(KINDS)
    for key, kind in KINDS.items():
        if isinstance(kind, Whole) and key not in ("total", "warmup"):
            assert f"| `{key}` | whole {kind.least:,}..{kind.most:,}" in table
    recipe = Recipe(samples=100)
    for key, written in re.findall(r"^\| `([a-z]+)` \| ([0-9,]+) \|", defaults, re.MULTILINE):
        assert getattr(recipe, key) == int(written.replace(",", "")), key
    assert "`sgd`, 0.05, 0.9, `constant`" in defaults
    assert (recipe.algorithm, recipe.peak, recipe.momentum) == ("sgd", 0.05, 0.9)
