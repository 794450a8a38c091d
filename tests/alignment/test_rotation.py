"""LoRA pairs and attention heads in another basis."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polo.alignment import align, align_lora, trace
from polo.errors import WeightsError
from polo_lab import models
from polo_lab.attacks import symmetry


def near(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


@pytest.mark.parametrize(("drift", "most"), [(0.0, 1e-5), (0.1, 0.06), (0.3, 0.15)])
@pytest.mark.parametrize("trained", [True, False])
def test_a_pair_comes_back(drift: float, most: float, trained: bool) -> None:
    draw = np.random.default_rng(0)
    old = draw.standard_normal((8, 96)), draw.standard_normal((64, 8)) * trained
    new = [a + drift * draw.standard_normal(a.shape) for a in old]
    if not trained:
        new[1] = draw.standard_normal((64, 8))
    pair = [torch.from_numpy(a).float() for a in new]
    turned = [t.numpy() for t in symmetry.rotate_lora(pair[0], pair[1], 5)]
    product = pair[1].numpy() @ pair[0].numpy()
    assert near(turned[0], new[0]) > 0.5
    assert near(turned[1] @ turned[0], product) < 1e-5
    down, up = align_lora(turned[0], turned[1], old[0], old[1])
    assert near(up @ down, product) < 1e-5
    assert near(down, new[0]) <= most
    assert near(up, new[1]) <= 2 * most


def test_a_rank_of_which_nothing_is_known_stays_invertible() -> None:
    draw = np.random.default_rng(1)
    down, up = draw.standard_normal((4, 16)), draw.standard_normal((16, 4))
    first, second = align_lora(down, up, np.zeros((4, 16)), np.zeros((16, 4)))
    assert near(second @ first, up @ down) < 1e-9


def test_shapes_and_values_are_checked() -> None:
    down, up = np.ones((4, 16)), np.ones((16, 4))
    with pytest.raises(WeightsError, match="no two LoRA pairs"):
        align_lora(down, up.T, down, up)
    with pytest.raises(WeightsError, match="not finite"):
        align_lora(down * np.nan, up, down, up)


def moved(state: dict[str, torch.Tensor], drift: float) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        name: t + drift * t.std() * torch.randn_like(t) if t.numel() > 1 else t
        for name, t in state.items()
    }


@pytest.mark.parametrize("kind", ["lora", "heads"])
def test_rotated_permuted_and_rescaled_at_once(kind: str, lab: Any) -> None:
    torch.manual_seed(0)
    model: nn.Module = models.add_lora(models.MLP(), rank=6) if kind == "lora" else lab.build("vit")
    for name, tensor in model.state_dict().items():
        if name.endswith("lora_B"):
            nn.init.normal_(tensor, std=0.1)
    wiring = trace(model, (lab.inputs_of("vit"),))
    reference = model.state_dict()
    later = moved(reference, 0.1)
    stolen = symmetry.rotate(later, wiring, 7)
    stolen = symmetry.rescale(symmetry.permute(stolen, wiring, 8), wiring, 9, 0.5)
    aligned = align(lab.arrays(stolen), lab.arrays(reference), wiring)
    true = lab.arrays(later)
    for name, array in true.items():
        if array.ndim >= 2:
            assert near(aligned.arrays[name], array) < 0.12, name
