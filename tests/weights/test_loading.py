"""Checkpoints loaded into live models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polo.errors import WeightsError
from polo.weights import FileCheckpoint, MemoryCheckpoint, checkpoint_of, commit
from polo.weights.checkpoint import HeldCheckpoint
from polo.weights.files import write_checkpoint
from polo.weights.loading import Loader, NotLoadedError, load_into


def written(path: Path, state: Any) -> Any:
    checkpoint = MemoryCheckpoint(state)
    with path.open("wb") as file:
        write_checkpoint(checkpoint, file.write)
    return checkpoint.layout


def test_loading_gives_a_model_exactly_these_weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(3, 3).double())
    other = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(3, 3).double())
    other = other.to(memory_format=torch.channels_last)
    layout = written(tmp_path / "w.safetensors", one.state_dict())
    with FileCheckpoint.canonical(tmp_path / "w.safetensors", layout) as stored:
        load_into(other, stored)
    assert commit(checkpoint_of(other)).root == commit(checkpoint_of(one)).root
    assert other[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_weights_that_begin_anywhere_in_memory_are_loaded() -> None:
    one, other = (nn.Linear(3, 3).double() for _ in range(2))
    for model in (one, other):
        model.register_buffer("a", torch.ones(1, dtype=torch.bool))
    one.register_buffer("z", torch.randn(5, dtype=torch.complex128))
    other.register_buffer("z", torch.zeros(5, dtype=torch.complex128))
    held = HeldCheckpoint.copy_of(checkpoint_of(one))
    assert any(held.layout.offsets[at] % 8 for at in range(1, 4))
    load_into(other, held, check=True)
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_loading_refuses_another_layout() -> None:
    with pytest.raises(WeightsError, match="different layouts"):
        load_into(nn.Linear(2, 2), MemoryCheckpoint({"weight": np.ones((2, 2), np.float32)}))


def linear(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def root(model: nn.Module) -> bytes:
    return commit(checkpoint_of(model)).root


def other_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(4, 3))


def other_values(model: nn.Sequential) -> None:
    model[0].weight.data = torch.zeros(4, 3)


def other_order(model: nn.Sequential) -> None:
    model[0].weight.data = torch.zeros(3, 4).t()


def other_module(model: nn.Sequential) -> None:
    model[1] = nn.BatchNorm1d(4)


@pytest.mark.parametrize("change", [other_parameter, other_values, other_order, other_module])
@pytest.mark.parametrize("check", [False, True])
def test_a_loader_finds_what_was_put_in_the_place_of_tensors(
    change: Callable[[nn.Sequential], None], check: bool
) -> None:
    model = linear(0)
    loader = Loader(model)
    for seed in (1, 2, 3):
        loader.load(HeldCheckpoint.copy_of(checkpoint_of(linear(seed))), check=check)
        assert root(model) == root(linear(seed))
        change(model)
        assert root(model) != root(linear(seed)) or change is other_module


def test_a_loader_refuses_a_model_that_has_changed_its_layout() -> None:
    model = linear(0)
    loader = Loader(model)
    model[0].weight.data = torch.zeros(5, 3)
    with pytest.raises(WeightsError, match="different layouts"):
        loader.load(checkpoint_of(linear(1)))


class Copied(nn.Sequential):
    """Hands out copies of its tensors."""

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return {k: v.clone() for k, v in super().state_dict(*arguments, **options).items()}


class Folded(nn.Module):
    """Two names for overlapping memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(4, 4))
        self.other = nn.Parameter(self.one.data.t())


def test_a_model_that_does_not_hold_what_was_loaded_is_refused() -> None:
    deaf = Copied(*linear(0))
    for _ in range(2):
        with pytest.raises(NotLoadedError):
            load_into(deaf, checkpoint_of(linear(1)), check=True)
    apart = {"one": torch.randn(4, 4), "other": torch.randn(4, 4)}
    with pytest.raises(NotLoadedError):
        load_into(Folded(), checkpoint_of(apart), check=True)
    apart["other"] = apart["one"].t().clone()
    load_into(Folded(), checkpoint_of(apart), check=True)
