"""Keys kept in bits give what keys kept as numbers give."""

import numpy as np
import pytest
import torch

from polo.embedding import rows as module
from polo.embedding.rows import Rows


@pytest.fixture(params=["plain", "packed"])
def rows(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Rows, torch.Tensor]:
    signs = np.random.default_rng(1).choice(np.array([-1, 1], np.int8), (3, 40, 64))
    if request.param == "packed":
        monkeypatch.setattr(module, "_PLAIN", 0)
        monkeypatch.setattr(module, "_SPREAD", 3 * 64 * 7)
    return Rows(signs, torch.device("cpu")), torch.from_numpy(signs).double()


def test_products_are_as_good_as_float32_allows(rows: tuple[Rows, torch.Tensor]) -> None:
    held, signs = rows
    torch.manual_seed(0)
    weights, slopes = torch.randn(3, 64), torch.randn(3, 40)
    sums = held.times(weights)
    exact = torch.bmm(signs, weights.double().unsqueeze(2)).squeeze(2)
    assert sums.shape == (3, 40)
    assert sums.dtype == torch.float32
    assert (sums.double() - exact).abs().max() <= 64 * 2**-24 * weights.abs().max() * 8
    back = held.back(slopes, -0.5)
    exact = torch.bmm(slopes.double().unsqueeze(1), signs).squeeze(1) * -0.5
    assert back.shape == (3, 64)
    assert torch.allclose(back.double(), exact, rtol=1e-5, atol=1e-5)


def test_doubles_are_the_signs_themselves(rows: tuple[Rows, torch.Tensor]) -> None:
    held, signs = rows
    assert torch.equal(held.doubles(), signs)
    weights = torch.randn(3, 64, dtype=torch.float64)
    assert held.times(weights).dtype == torch.float64
    assert torch.allclose(held.times(weights), torch.bmm(signs, weights.unsqueeze(2)).squeeze(2))


def test_a_dense_key_of_many_bits_is_small() -> None:
    signs = np.ones((1, 2048, 16384), np.int8)
    held = Rows(signs, torch.device("cpu"))
    kept = sum(t.untyped_storage().nbytes() for t in vars(held).values() if torch.is_tensor(t))
    assert kept < 5e6
    assert torch.equal(held.times(torch.ones(1, 16384)), torch.full((1, 2048), 16384.0))
