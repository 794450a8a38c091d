"""Unrelated weights match no better than by chance, as long as the reference is older."""

import copy
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from polo import watermark, weights
from polo.alignment import align, trace
from polo.embedding.embedder import Embedder

KEYS = 300


@pytest.fixture(scope="module")
def scene(lab: Any) -> Any:
    """The owner's W_{x-1}, somebody else's trained model, and where marks go."""
    owner, other = lab.build("mlp", 0), lab.build("mlp", 9)
    for model, epochs in ((owner, 4), (other, 7)):
        lab.train("mlp", model, lab.optimizer_of("mlp", model), epochs)
    wiring = trace(owner, (lab.inputs_of("mlp"),))
    return owner, lab.arrays(other.state_dict()), wiring, *lab.marking(owner)


def z_of(found: Any, mark: Any, carrier: Any) -> float:
    values = watermark.values_of(mark, carrier, weights.MemoryCheckpoint(found))
    reading = watermark.read(mark, values)
    return (reading.matches - reading.bits / 2) / math.sqrt(reading.bits / 4)


def test_aligned_to_an_older_checkpoint_bits_are_coin_flips(scene: Any, lab: Any) -> None:
    owner, unrelated, wiring, terms, carrier = scene
    aligned = align(unrelated, lab.arrays(owner.state_dict()), wiring).arrays
    assert any(not np.array_equal(aligned[name], unrelated[name]) for name in carrier.names)
    marks = [watermark.derive(terms, carrier, lab.seed_of(owner, key + 1)) for key in range(KEYS)]
    found = np.array([z_of(aligned, mark, carrier) for mark in marks])
    assert 0.001 < stats.chi2.sf(float((found**2).sum()), KEYS) < 0.999
    # Matches are whole numbers: spread each over the width of one before it is compared.
    step = 1 / math.sqrt(terms.scheme.bits / 4)
    smooth = found + np.random.default_rng(0).uniform(-step / 2, step / 2, KEYS)
    assert stats.kstest(smooth, "norm").pvalue > 0.001
    assert abs(found.mean()) < 4 / math.sqrt(KEYS)


def test_aligned_to_the_marked_checkpoint_bits_are_not(scene: Any, lab: Any) -> None:
    """Why a mark is never read after alignment to the checkpoint that carries it.

    Alignment moves unrelated channels to where they resemble the reference most; if the reference
    carries the mark, so does the resemblance.
    """
    owner, unrelated, wiring, terms, carrier = scene
    older = align(unrelated, lab.arrays(owner.state_dict()), wiring).arrays
    honest, inflated = [], []
    for key in range(4):
        marked = copy.deepcopy(owner)
        embedder = Embedder(
            terms, carrier, lab.seed_of(owner, key + 1), dict(marked.named_parameters())
        )
        lab.train("mlp", marked, lab.optimizer_of("mlp", marked), 2, embedder)
        embedder.apply(embedder.finish())
        wrong = align(unrelated, lab.arrays(marked.state_dict()), wiring).arrays
        honest.append(z_of(older, embedder.mark, carrier))
        inflated.append(z_of(wrong, embedder.mark, carrier))
    assert abs(np.mean(honest)) < 2
    assert np.mean(inflated) > 3
    assert min(inflated) > 1.5
