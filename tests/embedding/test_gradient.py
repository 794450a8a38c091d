"""The closed-form gradient is the gradient of the stated loss."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import polo
from polo.embedding.ednn import EdnnPress
from polo.embedding.embedder import Embedder
from polo.embedding.placement import Placement, check_trained, parameters_of
from polo.embedding.presses import press
from polo.errors import TermsError, WeightsError
from polo.protocol.carrier import Carrier
from polo.protocol.records import SchemeTerms, Terms
from polo.watermark import Mark, carrier_of, derive
from polo.weights import checkpoint_of

SEED = bytes(range(32))
Enrol = Callable[..., polo.OfflineEnrolment]


def stated_loss(mark: Mark, values: torch.Tensor, reduction: str) -> torch.Tensor:
    """Binary cross-entropy of sigmoid(Xw) against the bits, in plain words of torch."""
    groups = values.reshape(mark.groups, -1)
    total = torch.zeros((), dtype=values.dtype)
    for at in range(mark.groups):
        logits = torch.from_numpy(mark.signs(at)).to(values.dtype) @ groups[at]
        bits = torch.from_numpy(mark.bits[at]).to(values.dtype)
        total = total + binary_cross_entropy_with_logits(logits, bits, reduction="sum")
    return total / mark.scheme.bits if reduction == "mean" else total


@pytest.mark.parametrize("scale", [0.0, 0.01, 0.3, 30.0])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("key", ["block", "dense"])
def test_gradient_equals_autograd(
    enrol: Enrol, task: Any, key: str, reduction: str, every: int, scale: float
) -> None:
    terms = enrol(key=key, reduction=reduction, every=every, strength=0.03).record.terms
    carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
    mark = derive(terms, carrier, SEED)
    torch.manual_seed(0)
    values = (torch.randn(len(mark.blocks), 256, dtype=torch.float64) * scale).requires_grad_()
    (stated_loss(mark, values, reduction) * 0.03 * every).backward()
    assert values.grad is not None
    found = EdnnPress(mark, terms, torch.device("cpu")).gradient(values.detach().float())
    error = (found.double() - values.grad).norm()
    assert error <= 1e-5 * values.grad.norm()


def test_descending_the_gradient_presses_the_mark_in(enrol: Enrol, task: Any) -> None:
    terms = enrol().record.terms
    carrier = carrier_of(terms, checkpoint_of(task.build_model()).layout)
    pressing = press(derive(terms, carrier, SEED), terms, torch.device("cpu"))
    mark = derive(terms, carrier, SEED)
    torch.manual_seed(0)
    values = torch.randn(len(mark.blocks), 256) * 0.05
    before = stated_loss(mark, values, "sum")
    for _ in range(20):
        values -= 0.05 * pressing.gradient(values)
    assert stated_loss(mark, values, "sum") < 0.8 * before


def test_an_unknown_scheme_has_no_press(enrol: Enrol) -> None:
    terms = enrol().record.terms
    nobody = SchemeTerms("nobody", 32, 256, 125_000, "block", 1000, "sum", 1)
    with pytest.raises(TermsError, match="nobody"):
        press(Mark(nobody, (0,), SEED), terms, torch.device("cpu"))


class Mixed(nn.Module):
    """Carriers of several types and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last)
        self.f16 = nn.Linear(48, 40).half()
        self.bf16 = nn.Linear(48, 40).bfloat16()
        self.f64 = nn.Linear(48, 40).double()
        self.turned = nn.Parameter(torch.randn(40, 48).T)


class MixedTask:
    name, version, metric, floor = "mixed", 1, "accuracy", ()

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Mixed()

    def evaluate(self, model: nn.Module) -> float:
        return 0.0


@pytest.fixture
def mixed(enrol: Enrol) -> tuple[nn.Module, Terms, Carrier]:
    model = MixedTask().build_model()
    terms = enrol(task=MixedTask(), bits=44 * 32).record.terms
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    # Every block, so that every carrier takes part.
    assert carrier.blocks == 18 + 4 * 7 == 46
    return model, terms, carrier


def expected_rows(model: nn.Module, carrier: Carrier, blocks: tuple[int, ...]) -> torch.Tensor:
    parameters = dict(model.named_parameters())
    rows = []
    for block in blocks:
        where = carrier.locate(block)
        flat = parameters[carrier.layout.tensors[where.tensor].name].detach().double().reshape(-1)
        rows.append(flat[where.element : where.element + 256])
    return torch.stack(rows)


def test_gathering_follows_the_canonical_order_whatever_the_strides(
    mixed: tuple[nn.Module, Terms, Carrier],
) -> None:
    model, terms, carrier = mixed
    assert not model.conv.weight.is_contiguous()
    assert not model.turned.is_contiguous()
    blocks = derive(terms, carrier, SEED).blocks
    placement = Placement(carrier, blocks, parameters_of(model))
    assert torch.equal(placement.gather(torch.float64), expected_rows(model, carrier, blocks))


@pytest.mark.parametrize("layout", ["as the parameter", "contiguous", "channels last"])
def test_gradients_are_added_exactly_where_the_mark_sits(
    mixed: tuple[nn.Module, Terms, Carrier], layout: str
) -> None:
    model, terms, carrier = mixed
    blocks = derive(terms, carrier, SEED).blocks
    placement = Placement(carrier, blocks, parameters_of(model))
    for parameter in model.parameters():
        grad = torch.randint_like(parameter, -8, 8)
        if layout == "contiguous":
            grad = grad.contiguous()
        elif layout == "channels last" and grad.dim() == 4:
            grad = grad.contiguous(memory_format=torch.channels_last)
        parameter.grad = grad
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    # Small integers, so that every type adds them without rounding.
    added = torch.randint(-8, 8, (len(blocks), 256)).float()
    placement.add_to_gradients(added)
    for parameter in model.parameters():
        parameter.data = parameter.grad
    changed = expected_rows(model, carrier, blocks)
    for name, parameter in model.named_parameters():
        parameter.data = before[name]
    assert torch.equal(changed - expected_rows(model, carrier, blocks), added.double())
    untouched = set(range(carrier.blocks)) - set(blocks)
    assert untouched
    for name, parameter in model.named_parameters():
        parameter.data = parameter.grad - before[name]
    assert not expected_rows(model, carrier, tuple(untouched)).any()
    assert not model.f16.bias.any()


def test_parameters_without_gradient_are_left_alone(
    mixed: tuple[nn.Module, Terms, Carrier],
) -> None:
    model, terms, carrier = mixed
    embedder = Embedder(terms, carrier, SEED, parameters_of(model))
    model.f16.weight.grad = torch.zeros_like(model.f16.weight)
    embedder.add_gradient()
    assert model.f16.weight.grad.any()
    assert model.conv.weight.grad is None
    assert model.f64.weight.grad is None


def test_the_scale_multiplies_the_marks_gradient(mixed: tuple[nn.Module, Terms, Carrier]) -> None:
    model, terms, carrier = mixed
    embedder = Embedder(terms, carrier, SEED, parameters_of(model))
    grads = []
    for scale in (1.0, 1024.0, torch.tensor(1024.0), torch.tensor([1024.0])):
        model.f64.weight.grad = torch.zeros_like(model.f64.weight)
        embedder.add_gradient(scale)
        grads.append(model.f64.weight.grad)
    for scaled in grads[1:]:
        assert torch.equal(scaled, grads[0] * 1024)


def test_writing_back_changes_only_the_marks_blocks(
    mixed: tuple[nn.Module, Terms, Carrier],
) -> None:
    model, terms, carrier = mixed
    blocks = derive(terms, carrier, SEED).blocks
    placement = Placement(carrier, blocks, parameters_of(model))
    before = expected_rows(model, carrier, tuple(range(carrier.blocks)))
    values = torch.randn(len(blocks), 256, dtype=torch.float64)
    placement.write(values)
    assert torch.equal(expected_rows(model, carrier, blocks), placement.rounded(values))
    others = [block for block in range(carrier.blocks) if block not in blocks]
    assert torch.equal(expected_rows(model, carrier, tuple(others)), before[others])


def test_carriers_that_are_not_trained_are_refused_by_name(enrol: Enrol, task: Any) -> None:
    model = task.build_model()
    terms = enrol().record.terms
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    everything = torch.optim.SGD(model.parameters(), lr=1)
    check_trained(parameters_of(model), carrier, everything)
    some = torch.optim.SGD([model[0].weight, model[5].weight], lr=1)
    with pytest.raises(WeightsError, match="unknown to the optimizer") as caught:
        check_trained(parameters_of(model), carrier, some)
    assert caught.value.place == "3.weight"
    model[0].weight.requires_grad_(False)
    with pytest.raises(WeightsError, match="frozen") as caught:
        check_trained(parameters_of(model), carrier, everything)
    assert caught.value.place == "0.weight"
    with pytest.raises(WeightsError, match="no such parameter"):
        check_trained({}, carrier, everything)


def test_parameters_are_named_as_the_checkpoint_names_them() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(1))

    for model in (Odd(), nn.DataParallel(Odd())):
        assert set(parameters_of(model)) == {"module.weight", "module.bias"}
        assert set(parameters_of(model)) <= {t.name for t in checkpoint_of(model).layout.tensors}
