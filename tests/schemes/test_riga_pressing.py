"""Pressing RIGA: the gradient, the finishing step, the discriminator, and a chain of shards."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import polo
from polo.embedding import discriminator, products
from polo.embedding.discriminator import Discriminator
from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.embedding.presses import Watching
from polo.embedding.riga import RigaPress
from polo.evidence.replay.recipe import Recipe
from polo.protocol.carrier import Carrier
from polo.watermark import Mark, carrier_of, derive
from polo.watermark.riga import Riga
from polo.weights import MemoryCheckpoint, checkpoint_of

Enrol = Callable[..., polo.OfflineEnrolment]
CPU = torch.device("cpu")
SEED = hashlib.sha256(b"riga").digest()


@pytest.fixture
def press_of(enrol: Enrol, task: Any) -> Callable[..., tuple[RigaPress, Mark, Carrier]]:
    def make(**options: Any) -> tuple[RigaPress, Mark, Carrier]:
        terms = enrol(**{"scheme": "riga", "bits": 128, **options}).record.terms
        carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
        mark = derive(terms, carrier, SEED)
        return RigaPress(mark, terms, CPU), mark, carrier

    return make


def weights(blocks: int, scale: float = 0.05, seed: int = 0) -> torch.Tensor:
    return torch.randn(blocks, 256, generator=torch.Generator().manual_seed(seed)) * scale


def right(mark: Mark, values: torch.Tensor) -> np.ndarray[Any, Any]:
    return Riga().matches(mark, values.double().numpy(), range(mark.groups))


def by_autograd(press: RigaPress, values: torch.Tensor) -> torch.Tensor:
    doubles = values.double().requires_grad_()
    return torch.autograd.grad(press.loss(doubles), doubles)[0]


@pytest.mark.parametrize("options", [{}, {"key": "dense"}, {"reduction": "mean", "every": 8}])
def test_the_closed_form_is_the_gradient(
    press_of: Callable[..., Any], options: dict[str, Any]
) -> None:
    press, mark, _ = press_of(**options)
    for scale in (0.02, 1.0):
        values = weights(len(mark.blocks), scale)
        found, expected = press.gradient(values), by_autograd(press, values)
        assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())


def test_logits_of_random_weights_are_as_large_as_ednns(press_of: Callable[..., Any]) -> None:
    press, mark, _ = press_of()
    signs = torch.from_numpy(np.stack([mark.signs(g) for g in range(mark.groups)])).float()
    ours, ednns = [], []
    for seed in range(20):
        values = weights(mark.groups, seed=seed)
        ours.append(press._logits(products.times(press._hidden, values)))
        ednns.append(torch.bmm(signs, values.unsqueeze(2)).squeeze(2))
    ratio = float(torch.stack(ours).std() / torch.stack(ednns).std())
    assert 0.9 < ratio < 1.1


@pytest.mark.parametrize("budget", [0.0, 0.02, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("key", ["block", "dense"])
def test_finishing_keeps_its_budget_and_every_right_bit(
    press_of: Callable[..., Any], budget: float, key: str
) -> None:
    press, mark, _ = press_of(budget=budget, key=key)
    values = weights(len(mark.blocks)).double()
    finished = press.finish(values)
    before, after = right(mark, values), right(mark, finished)
    edit = (finished - values).reshape(mark.groups, -1).norm(dim=1)
    norms = values.reshape(mark.groups, -1).norm(dim=1)
    assert (edit <= budget * norms * (1 + 1e-12)).all()
    assert after[before].all()
    if budget >= 0.1:
        assert after.sum() > before.sum() + 10
    elif not budget:
        assert torch.equal(finished, values)


def test_finishing_turns_all_bits_that_pressing_left_wrong(press_of: Callable[..., Any]) -> None:
    press, mark, _ = press_of(strength=1.0)
    values = weights(len(mark.blocks))
    for _ in range(5):
        values = values - 0.002 * press.gradient(values)
    before = right(mark, values)
    assert 0.7 < before.mean() < 0.98
    assert right(mark, press.finish(values.double())).all()


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_finishing_ends_on_odd_weights(press_of: Callable[..., Any], value: float) -> None:
    press, mark, _ = press_of()
    values = torch.full((len(mark.blocks), 256), value, dtype=torch.float64)
    values[1] = weights(1).double()[0]
    finished = press.finish(values)
    assert finished.isfinite().all()
    assert right(mark, finished)[right(mark, values)].all()


# -- the discriminator ---------------------------------------------------------------------------


def test_the_reference_is_unmarked_and_of_the_same_tensors(press_of: Callable[..., Any]) -> None:
    press, mark, carrier = press_of()
    assert isinstance(press, Watching)
    reference = press.reference(carrier)
    assert reference
    assert len(set(reference)) == len(reference)
    assert not set(reference) & set(mark.blocks)
    tensors = {carrier.locate(block).tensor for block in mark.blocks}
    assert {carrier.locate(block).tensor for block in reference} <= tensors
    assert reference == Discriminator(mark, carrier, CPU).reference


def test_shares_compare_like_with_like() -> None:
    """Each tensor has as much weight among unmarked as among marked blocks; lone ones have none."""
    layers = {"a": torch.zeros(40, 256), "b": torch.zeros(6, 256), "c": torch.zeros(1, 256)}
    carrier = Carrier(MemoryCheckpoint(layers).layout, ("a", "b", "c"), 256)
    terms = polo.make_terms(carrier.layout, scheme="riga", bits=128)
    mark = Mark(terms.scheme, (0, 7, 41, 46), SEED)
    reference, average, shares = discriminator._comparison(mark, carrier)
    tensors = np.array([carrier.locate(b).tensor for b in (*reference, *mark.blocks)])
    count = len(reference)
    assert set(tensors[:count]) == {0, 1}
    for tensor in (0, 1):
        here = shares[tensors == tensor]
        assert here.sum() == pytest.approx(0, abs=1e-6)
        assert here.any()
    assert shares[tensors == 2].tolist() == [0]
    assert shares[:count].sum() == pytest.approx(1)
    squares = np.where(tensors[:count] == 0, 4.0, 9.0)
    assert (average @ squares)[count:-1].tolist() == pytest.approx([4, 4, 9])
    assert np.isfinite(average).all()


def test_without_unmarked_blocks_there_is_no_discriminator() -> None:
    carrier = Carrier(MemoryCheckpoint({"a": torch.zeros(4, 256)}).layout, ("a",), 256)
    terms = polo.make_terms(carrier.layout, scheme="riga", bits=128)
    press = RigaPress(derive(terms, carrier, SEED), terms, CPU)
    assert press.reference(carrier) == ()
    assert press.gradient(weights(4)).isfinite().all()


def taught(press: RigaPress, carrier: Carrier, values: torch.Tensor, steps: int = 20) -> None:
    unmarked = weights(len(press.reference(carrier)), seed=9)
    with torch.no_grad():
        for _ in range(steps):
            press.watch(values, unmarked)


def test_its_gradient_is_that_of_its_loss(press_of: Callable[..., Any]) -> None:
    press, mark, carrier = press_of()
    values = weights(len(mark.blocks), 0.1)
    plain = press.gradient(values)
    taught(press, carrier, values)
    found, expected = press.gradient(values), by_autograd(press, values)
    assert float((found - plain).norm()) > 0.01 * float(plain.norm())
    assert float((found - expected).norm()) <= 1e-4 * float(expected.norm())


@pytest.mark.parametrize("factor", [0.5, 1.5, 2.5])
def test_it_draws_marked_blocks_back_to_the_size_of_unmarked_ones(
    press_of: Callable[..., Any], factor: float
) -> None:
    press, mark, carrier = press_of()
    values = weights(len(mark.blocks), 0.05 * factor)
    taught(press, carrier, values)
    pull = press._discriminator.gradient(values)
    # Along a block's weights: going down this gradient shrinks what is too large.
    along = (pull * values).sum(dim=1)
    assert ((along > 0) if factor > 1 else (along < 0)).all()


def test_what_it_hands_back_is_bounded(press_of: Callable[..., Any]) -> None:
    press, mark, carrier = press_of()
    values = weights(len(mark.blocks), 5.0)
    taught(press, carrier, values, steps=100)
    most = discriminator.PRICE / (0.05 * 16)
    assert (press._discriminator.gradient(values).norm(dim=1) <= most * 1.2).all()


def test_hostile_weights_leave_it_finite(press_of: Callable[..., Any]) -> None:
    press, mark, carrier = press_of()
    values = weights(len(mark.blocks))
    count = len(press.reference(carrier))
    with torch.no_grad():
        for unmarked in (torch.zeros(count, 256), torch.full((count, 256), 1e15)):
            press.watch(values, unmarked)
            assert press.gradient(values).isfinite().all()


def test_it_learns_every_few_presses_only(enrol: Enrol, task: Any) -> None:
    terms, model, looks = enrol(scheme="riga", bits=128).record.terms, task.build_model(), []
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    embedder = Embedder(terms, carrier, SEED, parameters_of(model))
    learn = embedder._press._discriminator.learn
    embedder._press._discriminator.learn = lambda *given: looks.append(1) or learn(*given)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(4 * discriminator.EVERY):
        embedder.add_gradient()
    assert len(looks) == 4


def test_where_training_is_replayed_it_is_off(enrol: Enrol, task: Any) -> None:
    recipe = Recipe(samples=256, batch=32, every=4)
    replayed = enrol(scheme="riga", bits=128, replay=recipe, data=bytes(32)).record.terms
    carrier = carrier_of(replayed, checkpoint_of(task.build_model()).layout)
    press = RigaPress(derive(replayed, carrier, SEED), replayed, CPU)
    assert press.reference(carrier) == ()
    values = weights(replayed.scheme.blocks)
    before = press.gradient(values)
    press.watch(values, values)
    assert torch.equal(press.gradient(values), before)


def test_a_shard_trained_again_from_its_start_is_the_same(enrol: Enrol, task: Any) -> None:
    terms = enrol(scheme="riga", bits=128).record.terms

    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        carrier = carrier_of(terms, checkpoint_of(model).layout)
        embedder = Embedder(terms, carrier, SEED, parameters_of(model))
        optimizer.register_step_pre_hook(lambda *_: embedder.add_gradient())
        task.train_epoch(model, optimizer)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(), trained())


def test_two_sealed_shards_verify(make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=2, terms={"scheme": "riga", "strength": 0.05})
    assert [shard.shard for shard in made.manifest.shards] == [1, 2]
    for shard in made.manifest.shards:
        assert shard.matches >= 0.99 * 128
        assert shard.finish.largest <= 400_000
    verdict = made.verify()
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
