"""Forging: what the closed-form edit alone does to a model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import polo
from polo.embedding.forging import edits, forge, forged, hardness, seed_of
from polo.protocol.records import Terms
from polo.watermark.mark import carrier_of, derive
from polo.watermark.reading import read, values_of
from polo.watermark.schemes import SCHEMES
from polo.weights.checkpoint import checkpoint_of


def terms_of(task: Any, **options: Any) -> Terms:
    return polo.make_terms(task, **{"bits": 128, "fewest_shards": 1, **options})


@pytest.fixture
def model(task: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = task.build_model()
    return model


def test_every_bit_is_turned_and_the_model_ends_as_it_was(
    task: Any, model: torch.nn.Module
) -> None:
    terms = terms_of(task)
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    before = [p.detach().clone() for p in model.parameters()]
    with forged(model, terms, carrier, seed_of(1)) as made:
        mark = derive(terms, carrier, seed_of(1))
        assert read(mark, values_of(mark, carrier, checkpoint_of(model))).eta == 1.0
        assert made.reading.eta == 1.0
        assert made.edit > 0
    after = list(model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_enough_bits_cost_less_than_all(task: Any, model: torch.nn.Module) -> None:
    terms = terms_of(task, bits=512, load=0.25)
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    mark = derive(terms, carrier, seed_of(2))
    values = torch.from_numpy(values_of(mark, carrier, checkpoint_of(model))).double()
    whole, least = (forge(mark, terms, values, least=some) for some in (False, True))
    assert whole.accepted
    assert least.accepted
    assert least.edit < 0.6 * whole.edit
    assert terms.thresholds.verify / 1e6 <= least.reading.eta < 0.85


def test_the_budget_of_the_terms_binds_no_forger(task: Any, model: torch.nn.Module) -> None:
    found = hardness(model, terms_of(task, budget=0.0), marks=1)
    assert found.whole.eta == 1.0


def test_accuracy_is_measured_with_the_mark_in_place(task: Any, model: torch.nn.Module) -> None:
    seen: list[float] = []

    def evaluate() -> float:
        seen.append(float(sum(p.detach().double().abs().sum() for p in model.parameters())))
        return seen[-1]

    found = hardness(model, terms_of(task), evaluate=evaluate, marks=2)
    assert len(set(seen)) == 5, "once before, and once for each of two marks, whole and least"
    assert found.before == seen[0]
    assert found.whole.metric == pytest.approx((seen[1] + seen[2]) / 2)


def test_hardness_says_when_forging_is_free(task: Any, model: torch.nn.Module) -> None:
    terms = terms_of(task)
    assert hardness(model, terms, evaluate=lambda: 0.9, marks=1).free
    falling = iter((0.9, 0.5, 0.6))
    dear = hardness(model, terms, evaluate=lambda: next(falling), marks=1)
    assert dear.lost == pytest.approx(0.3)
    assert not dear.free
    assert not hardness(model, terms, marks=1).free, "what was not measured is not said"


def test_a_checkpoint_alone_gives_the_same_edits(task: Any, model: torch.nn.Module) -> None:
    terms = terms_of(task)
    alone, whole = edits(checkpoint_of(model), terms), hardness(model, terms)
    assert alone.whole.edit == pytest.approx(whole.whole.edit)
    assert alone.least.edit == pytest.approx(whole.least.edit)
    assert alone.before is None


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "fedipr"])
def test_marks_of_every_scheme_can_be_forged(
    name: str, task: Any, model: torch.nn.Module, capacity_bits: Callable[[str], int]
) -> None:
    terms = terms_of(task, scheme=name, bits=capacity_bits(name))
    found = hardness(model, terms, marks=1)
    assert found.whole.accepted
    assert found.least.edit <= found.whole.edit


@pytest.fixture
def capacity_bits(model: torch.nn.Module) -> Callable[[str], int]:
    """The most bits, up to 128, that fit into the tiny model with a scheme's own load."""

    def most(name: str) -> int:
        load = round(1e6 * SCHEMES[name].defaults.load)
        fits = polo.capacity_of(model, scheme=name)
        sizes = [bits for bits in (256, 128, 96, 72) if not fits.objection(bits, load)]
        assert sizes, f"the tiny model is too small for {name}"
        return sizes[0]

    return most
