"""The classifier that looks for marked blocks finds what shows, and nothing where nothing is."""

import hashlib

import numpy as np
import pytest
import torch

import polo
from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.protocol.carrier import Carrier
from polo.watermark import carrier_of
from polo.weights import MemoryCheckpoint, checkpoint_of
from polo_lab.schemes.stealth import detectability, scaled_blocks
from polo_lab.tasks import DigitsConv


def gaussian(blocks: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(blocks, 256))


def test_blocks_that_are_larger_are_found() -> None:
    found = detectability(1.3 * gaussian(40, 0), gaussian(60, 1), seed=0)
    assert found.accuracy > 0.95
    assert found.low > 0.8
    assert found.blocks == 80


def test_blocks_of_another_shape_and_the_same_size_are_found() -> None:
    uniform = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (40, 256))
    assert detectability(uniform, gaussian(40, 1), seed=0).low > 0.8


@pytest.mark.slow
def test_where_nothing_is_marked_nothing_is_found() -> None:
    found = [
        detectability(gaussian(40, 2 * at), gaussian(40, 2 * at + 1), seed=at) for at in range(4)
    ]
    assert sum(result.low > 0.5 for result in found) <= 1
    assert abs(np.mean([result.accuracy for result in found]) - 0.5) < 0.1


def test_blocks_that_are_larger_here_and_smaller_there_are_found() -> None:
    factors = np.repeat([0.7, 1.4, 0.7, 1.4], 15)
    marked, unmarked = gaussian(60, 0) * factors[:, None], gaussian(60, 1)
    assert detectability(marked, unmarked, seed=0).low > 0.8


def test_runs_are_judged_as_a_whole() -> None:
    """Marked blocks are larger in one run and smaller in the other: nothing carries over."""
    runs = np.repeat([0, 1], 30)
    marked = gaussian(60, 0) * np.where(runs, 0.97, 1.03)[:, None]
    unmarked = gaussian(60, 1) * np.where(runs, 1.03, 0.97)[:, None]
    within = detectability(marked[:30], unmarked[:30], seed=0)
    across = detectability(marked, unmarked, seed=0, runs=(runs, runs))
    assert within.accuracy > 0.65
    assert across.accuracy < 0.5


def test_it_is_repeatable_and_leaves_the_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = (detectability(gaussian(20, 0), gaussian(20, 1), seed=3) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="9 blocks"):
        detectability(gaussian(9, 0), gaussian(50, 1), seed=0)


def test_blocks_are_scaled_by_their_tensor() -> None:
    torch.manual_seed(0)
    checkpoint = MemoryCheckpoint({"a": torch.randn(4, 256) * 7, "b": torch.randn(8, 256) * 0.01})
    carrier = Carrier(checkpoint.layout, ("a", "b"), 256)
    rows = scaled_blocks(carrier, checkpoint, range(12))
    assert np.sqrt((rows[:4] ** 2).mean()) == pytest.approx(1)
    assert np.sqrt((rows[4:] ** 2).mean()) == pytest.approx(1)


def pressed(*, discriminator: bool) -> float:
    """How many times as large as others marked blocks are after some epochs of real training."""
    task = DigitsConv()
    terms = polo.make_terms(task, scheme="riga", bits=512, strength=0.005)
    torch.manual_seed(0)
    model = task.build_model()
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    seed = hashlib.sha256(b"stealth").digest()
    embedder = Embedder(terms, carrier, seed, parameters_of(model))
    if not discriminator:
        embedder._reference = None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    optimizer.register_step_pre_hook(lambda *_: embedder.add_gradient())
    images, labels = task.train_data
    for _ in range(80):
        at = torch.randint(0, len(labels), (64,))
        task.train_step(model, optimizer, {"image": images[at], "label": labels[at]})
    assert embedder.read().eta > 0.85
    others = [block for block in range(carrier.blocks) if block not in embedder.mark.blocks]
    marked, unmarked = (
        np.median(np.sqrt((scaled_blocks(carrier, checkpoint_of(model), some) ** 2).mean(axis=1)))
        for some in (embedder.mark.blocks, others)
    )
    return float(marked / unmarked)


@pytest.mark.slow
def test_the_discriminator_makes_marked_blocks_less_conspicuous() -> None:
    without, with_it = pressed(discriminator=False), pressed(discriminator=True)
    assert without > 1.8
    assert abs(with_it - 1) < 0.5 * (without - 1)
