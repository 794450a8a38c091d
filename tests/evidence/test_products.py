"""Which part of a step's products must be made."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from polo.evidence.replay.products import Products
from polo.evidence.replay.state import parameter_names


def left(model: nn.Module, inputs: torch.Tensor, loss: Callable[..., torch.Tensor]) -> float:
    model.zero_grad()
    with Products(model) as products:
        loss(model(inputs)).backward()
    names = parameter_names(model)
    slopes = {names[id(p)]: p.grad for p in model.parameters() if p.grad is not None}
    return products.left(slopes)


def squared(scores: torch.Tensor) -> torch.Tensor:
    return scores.square().sum()


def network(dead: int) -> nn.Sequential:
    """Ten inputs, eight units of which some never pass anything on, four outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].bias[dead:] = 10
        model[0].bias[:dead] = -1e3
    return model


@pytest.mark.parametrize("dead", [0, 2, 6])
def test_silent_units_are_left_out(dead: int) -> None:
    """By hand: the first layer's forward product, and of all others the part of live units."""
    part = 1 - dead / 8
    first, second = 80 * (1 + 2 * part) / 3, 32 * part
    found = left(network(dead), torch.randn(16, 10), squared)
    assert found == pytest.approx((first + second) / 112)


@pytest.mark.parametrize("blank", [0, 7])
def test_what_is_zero_in_the_data_is_no_silent_unit(blank: int) -> None:
    """Margins of images say nothing about how much of a network is trained."""
    inputs = torch.randn(16, 10)
    inputs[:, :blank] = 0
    assert left(network(0), inputs, squared) == pytest.approx(1.0)
    part, first = 1 - 6 / 8, 8 * (10 - blank)
    wanted = (first * (1 + 2 * part) / 3 + 32 * part) / (first + 32)
    assert left(network(6), inputs, squared) == pytest.approx(wanted)


def test_channels_that_are_zero_in_the_data_are_no_silent_ones_either() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))
    inputs = torch.randn(8, 3, 8, 8)
    inputs[:, 1:] = 0
    assert left(model, inputs, squared) == pytest.approx(1.0)
    grouped = nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(6 * 36, 5))
    assert 0.3 < left(grouped, inputs, squared) < 1


def test_layers_count_by_their_products_and_not_by_their_weights() -> None:
    """A convolution has few weights that are used at many places."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 64), nn.ReLU())
    with torch.no_grad():
        model[2].bias.fill_(-1e3)
    # The linear layer is dead, and so is what lies below: only forward products must be made.
    assert left(model, torch.randn(8, 1, 8, 8), squared) == pytest.approx(1 / 3)
    with torch.no_grad():
        model[2].bias[0] = 1e3
    sizes, parts = (36 * 36, 4 * 36 * 64), (1.0, (1 + 2 / 64) / 3)
    wanted = sum(size * part for size, part in zip(sizes, parts, strict=True)) / sum(sizes)
    assert left(model, torch.randn(8, 1, 8, 8), squared) == pytest.approx(wanted)


class Experts(nn.Module):
    """Each row goes to one expert; which one decides nothing about the work."""

    def __init__(self, busy: int) -> None:
        super().__init__()
        self.busy, self.all = busy, nn.ModuleList(nn.Linear(6, 6) for _ in range(8))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        chosen = torch.arange(len(rows)) % self.busy
        parts = [own(rows[chosen == at]) for at, own in enumerate(self.all)]
        return torch.cat(parts)


@pytest.mark.parametrize("busy", [1, 8])
def test_experts_that_get_no_row_cost_nothing_and_save_nothing(busy: int) -> None:
    assert left(Experts(busy), torch.randn(32, 6), squared) == pytest.approx(1.0)


def test_what_is_not_trained_does_not_count() -> None:
    model = network(6)
    model[0].weight.requires_grad_(False)
    assert left(model, torch.randn(16, 10), squared) == pytest.approx(2 / 8)


def test_where_no_layer_is_known_all_trained_numbers_count() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.ones(4, 4))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows @ self.matrix[:, :1]

    assert left(Own(), torch.ones(2, 4), squared) == pytest.approx((1 + 2 / 4) / 3)


def test_single_rows_and_hooks_leave_no_trace() -> None:
    model = network(0)
    assert left(model, torch.randn(10), squared) == pytest.approx(1.0)
    assert not any(layer._forward_hooks for layer in model.modules())
