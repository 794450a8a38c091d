"""The wiring of many architectures, proved by attacks that must not change any output."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from polo.alignment import Wiring, trace
from polo.alignment.wiring import Axis, segments
from polo.errors import PoloError, WeightsError
from polo_lab import models
from polo_lab.attacks import symmetry

# Groups that can be reordered, scalings, groups that can grow, groups ordered head by head.
EXPECTED = {
    "mlp": (2, 2, 2, 0),
    "mlp-norm": (2, 2, 0, 0),
    "conv": (3, 3, 3, 0),
    "vgg": (4, 8, 4, 0),
    "resnet": (4, 10, 4, 0),
    "preact": (5, 12, 5, 0),
    "mobilenet": (4, 14, 4, 0),
    "densenet": (8, 24, 8, 0),
    "vit": (9, 9, 2, 4),
    "gpt": (9, 8, 2, 4),
    "mixer": (5, 3, 4, 0),
}


class Odd(nn.Module):
    """Group-norm, grouped convolution with groups of several channels, PReLU, slices, stack."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1)
        self.norm = nn.GroupNorm(3, 12)
        self.slope = nn.PReLU(12)
        self.grouped = nn.Conv2d(12, 24, 3, padding=1, groups=3)
        self.bn = nn.BatchNorm2d(24)
        self.left, self.right = nn.Linear(12, 9), nn.Linear(12, 9)
        self.gate = nn.Parameter(torch.randn(9))
        self.head = nn.Linear(18, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.grouped(self.slope(self.norm(self.conv(x))))).mean((2, 3))
        left, right = functional.relu(self.left(x[:, :12])), self.right(x[:, 12:]) * self.gate
        scores: torch.Tensor = self.head(torch.stack([left, right], dim=1).flatten(1))
        return scores


class SharedKeys(nn.Module):
    """Fused q, k and v cut by a view; two query heads share each key head; rotary positions."""

    def __init__(self, rotary: bool = False) -> None:
        super().__init__()
        self.rotary = rotary
        self.embed = nn.Linear(8, 32)
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.fused = nn.Linear(32, 96)
        self.head = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.squeeze(1))
        q = self.q(x).view(-1, 8, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(-1, 8, 2, 2, 8).unbind(2)
        k, v = (t.transpose(1, 2) for t in (k, v))
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for t in (k, v))
        if self.rotary:
            angles = torch.arange(8.0)[:, None] / 10 ** torch.arange(4.0)
            turn = torch.cat([angles, angles], dim=1)
            q, k = (
                t * turn.cos() + torch.cat([-t[..., 4:], t[..., :4]], -1) * turn.sin()
                for t in (q, k)
            )
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        a, b, c = self.fused(x).reshape(-1, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = (a @ b.transpose(-2, -1) / 3).softmax(-1)
        x = x + (scores @ c).transpose(1, 2).reshape(-1, 8, 32)
        result: torch.Tensor = self.head(x.mean(1))
        return result


def ready(model: nn.Module) -> nn.Module:
    """In double precision, with norms and biases that are neither zero nor one."""
    torch.manual_seed(3)
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1 and tensor.is_floating_point():
            positive = name.endswith(("running_var", "norm.weight", "bn.weight"))
            tensor.copy_(torch.rand_like(tensor) + 0.5 if positive else torch.randn_like(tensor))
        if name.endswith("lora_B"):
            tensor.copy_(torch.randn_like(tensor))
    return model.double().eval()


def attacks(model: nn.Module, wiring: Wiring) -> dict[str, Any]:
    done = {
        "permute": symmetry.permute(model, wiring, 1),
        "rescale": symmetry.rescale(model, wiring, 2, 1.0),
        "rotate": symmetry.rotate(model, wiring, 3),
    }
    for kind in symmetry.KINDS:
        done[kind] = symmetry.add_dummies(model, wiring, kind, 0.3, 4)
    return done


def prove(model: nn.Module, wiring: Wiring, inputs: torch.Tensor) -> dict[str, Any]:
    """Every attack leaves every output alone."""
    ready(model)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    states = attacks(model, wiring)
    with torch.no_grad():
        expected = model(inputs)
        for attack, state in states.items():
            found = torch.func.functional_call(model, state, (inputs,), tie_weights=False)
            assert (found - expected).abs().max() < 1e-9 * (1 + expected.abs().max()), attack
    return states


def counts(wiring: Wiring) -> tuple[int, int, int, int]:
    groups = wiring.groups
    return (
        sum(group.permutable for group in groups),
        len(wiring.scalings),
        sum(group.extendable for group in groups),
        sum(group.parent is not None for group in groups),
    )


@pytest.mark.parametrize("name", list(EXPECTED))
def test_no_output_changes(name: str, lab: Any) -> None:
    model, inputs = lab.build(name), lab.inputs_of(name)
    wiring = trace(model, (inputs,))
    assert wiring.unknown == ()
    assert counts(wiring) == EXPECTED[name]
    states = prove(model, wiring, inputs)
    before = model.state_dict()
    for attack in ("permute", "rescale"):
        moved = [key for key in before if not torch.equal(before[key], states[attack][key])]
        assert moved
    wider = [key for key in before if before[key].shape != states["zero"][key].shape]
    assert bool(wider) == bool(EXPECTED[name][2])


def test_grouped_channels_and_slices() -> None:
    model = Odd()
    wiring = trace(model, (torch.randn(2, 1, 8, 8),))
    assert wiring.unknown == ()
    prove(model, wiring, torch.randn(2, 1, 8, 8))
    free = sorted(group.size for group in wiring.groups if group.permutable)
    # The slice behind the grouped convolution cuts through its groups, so these stay; channels
    # within a group of the norm do not. What is stacked moves together.
    assert free == [4, 9]
    assert (
        wiring.groups[next(g.parent for g in wiring.groups if g.size == 4 and g.parent)].size == 3
    )


@pytest.mark.parametrize("rotary", [False, True])
def test_heads_that_share_keys(rotary: bool) -> None:
    model = SharedKeys(rotary)
    inputs = torch.randn(2, 1, 8, 8)
    wiring = trace(model, (inputs,))
    prove(model, wiring, inputs)
    nested = [group for group in wiring.groups if group.parent is not None and group.permutable]
    assert len(nested) >= 2
    turned = {
        (place.tensor, place.axis)
        for one in wiring.rotations
        for place in wiring.groups[one.group].places
    }
    assert ("fused.weight", 0) in turned
    assert (("q.weight", 0) in turned) is not rotary


def test_lora_pairs_are_rotations() -> None:
    model = models.add_lora(models.MLP(), rank=4)
    inputs = torch.randn(2, 1, 8, 8)
    wiring = trace(model, (inputs,))
    assert wiring.unknown == ()
    assert len(wiring.rotations) == 3
    prove(model, wiring, inputs)


def test_full_resnet() -> None:
    wiring = trace(models.resnet18(), (torch.randn(1, 3, 32, 32),))
    assert counts(wiring) == (12, 32, 12, 0)


def test_unknown_operations_freeze_what_they_touch() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x).sort(dim=-1)[0]
            result: torch.Tensor = self.three(torch.relu(self.two(y)))
            return result

    wiring = trace(Sorted(), (torch.randn(3, 4),))
    assert wiring.unknown == ("sort",)
    assert [group.size for group in wiring.groups if group.permutable] == [5]


def test_what_cannot_be_traced_is_refused_with_advice() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    model = Branching().train()
    with pytest.raises(WeightsError, match=r"torch\.export cannot trace") as caught:
        trace(model, (torch.randn(2),))
    assert caught.value.advice
    assert model.training


def test_modes_are_kept() -> None:
    model = models.VGG().train()
    model.head.eval()
    trace(model, (torch.randn(2, 1, 8, 8),))
    assert model.features.training
    assert not model.head.training


def test_tied_tensors_move_together() -> None:
    model = models.GPT()
    inputs = torch.randint(0, 17, (2, 9))
    wiring = trace(model, (inputs,))
    assert wiring.ties == (("tokens.weight", "head.weight"),)
    state = symmetry.permute(model, wiring, 1)
    assert torch.equal(state["tokens.weight"], state["head.weight"])


def test_segments_of_interleaved_axes() -> None:
    axis = Axis(joined=False, parts=(0, Axis(joined=True, parts=(1, 2))))
    found = segments(axis, (2, 3, 4))
    assert [one.offset for one in found] == [0, 3]
    assert found[0].factors == ((0, 2, 7), (1, 3, 1))


def test_dummies_have_kinds() -> None:
    model = models.MLP()
    wiring = trace(model, (torch.randn(1, 1, 8, 8),))
    with pytest.raises(PoloError, match="no dummies of kind"):
        symmetry.add_dummies(model, wiring, "sleepy", 0.1, 1)
