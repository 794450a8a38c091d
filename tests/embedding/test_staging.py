"""Few launches for many tensors, whatever their types, strides and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import polo
from polo.embedding.embedder import Embedder
from polo.embedding.placement import Placement, parameters_of
from polo.embedding.presses import PRESSES
from polo.errors import WeightsError
from polo.protocol.carrier import Carrier
from polo.watermark import carrier_of
from polo.weights import checkpoint_of

SEED = bytes(range(32))
Enrol = Callable[..., polo.OfflineEnrolment]
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "item")


class Launches(TorchDispatchMode):
    """Writes down what is asked of the device: everything but views and empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and not name.startswith(("empty", "new_empty", "detach", "split")):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def kernels(depth: int, width: int = 32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Conv2d(width, width, 3) for _ in range(depth)))


def carrier_for(model: nn.Module, block: int = 64) -> Carrier:
    layout = checkpoint_of(model).layout
    names = tuple(t.name for t in layout.tensors if len(t.shape) > 1)
    return Carrier(layout, names, block)


def drawn(carrier: Carrier, count: int) -> tuple[int, ...]:
    order = torch.randperm(carrier.blocks, generator=torch.Generator().manual_seed(2))
    return tuple(order[:count].tolist())


def weights_at(carrier: Carrier, blocks: tuple[int, ...], tensors: dict[str, Any]) -> torch.Tensor:
    """The plain way: flatten each tensor in canonical order and cut the blocks out."""
    rows = []
    for block in blocks:
        where = carrier.locate(block)
        flat = tensors[carrier.layout.tensors[where.tensor].name].detach().double().reshape(-1)
        rows.append(flat[where.element : where.element + carrier.block])
    return torch.stack(rows)


def integers(tensor: torch.Tensor) -> torch.Tensor:
    """Small whole numbers, which every type adds without rounding; the strides stay."""
    return torch.empty_like(tensor).copy_(torch.randint(-8, 8, tensor.shape))


def vocabulary() -> nn.Module:
    """A matrix held the other way round: neighbours in a row are 3000 weights apart."""
    model = nn.Module()
    model.table = nn.Parameter(torch.randn(64, 3000).T)
    model.square = nn.Parameter(torch.randn(40, 48).T)
    return model


def of_many_types() -> nn.Module:
    model = kernels(4)
    model[1].bfloat16()
    model[2].half().to(memory_format=torch.channels_last)
    model[3].double()
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "contiguous": lambda: kernels(3),
    "channels last": lambda: kernels(3).to(memory_format=torch.channels_last),
    "wide, channels last": lambda: kernels(1, 160).to(memory_format=torch.channels_last),
    "both": lambda: nn.Sequential(kernels(2), kernels(2).to(memory_format=torch.channels_last)),
    "many types": of_many_types,
    "turned": vocabulary,
    "one by one": lambda: nn.Sequential(nn.Conv2d(64, 32, 1), nn.Conv2d(32, 64, 1)),
}


@pytest.mark.parametrize("count", [1, 20, 500])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_gathered_and_gradients_added_where_the_mark_is(name: str, count: int) -> None:
    model = MODELS[name]()
    carrier = carrier_for(model)
    blocks = drawn(carrier, min(carrier.blocks, count))
    named = dict(model.named_parameters())
    placement = Placement(carrier, blocks, named)
    assert torch.equal(placement.gather(torch.float64), weights_at(carrier, blocks, named))
    for parameter in named.values():
        parameter.grad = integers(parameter)
    before = {at: p.grad.clone() for at, p in named.items()}
    added = torch.randint(-8, 8, (len(blocks), carrier.block)).float()
    placement.add_to_gradients(added)
    moved = {at: p.grad - before[at] for at, p in named.items()}
    assert torch.equal(weights_at(carrier, blocks, moved), added.double())
    assert sum(float(m.double().abs().sum()) for m in moved.values()) == float(added.abs().sum())
    values = torch.randn(len(blocks), carrier.block, dtype=torch.float64)
    placement.write(values)
    assert torch.equal(placement.gather(torch.float64), placement.rounded(values))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_what_is_not_the_marks_keeps_every_bit(memory: torch.memory_format) -> None:
    model = kernels(1).to(memory_format=memory)
    carrier = carrier_for(model)
    placement = Placement(carrier, drawn(carrier, 3), dict(model.named_parameters()))
    grad = torch.full_like(model[0].weight, -0.0)
    grad[0, 0, 0, 0], grad[-1, -1, 0, 0] = torch.nan, torch.inf
    model[0].weight.grad = grad.clone(memory_format=torch.preserve_format)
    placement.add_to_gradients(torch.zeros(3, 64))
    found = model[0].weight.grad
    # Zero is added to the mark's own weights alone; elsewhere minus zero stays minus zero.
    assert int(torch.signbit(grad).sum() - torch.signbit(found).sum()) <= 3 * 64
    assert torch.equal(found.nan_to_num(7), grad.nan_to_num(7))


class Gradients:
    """Ways in which gradients differ from what a parameter would lead one to expect."""

    @staticmethod
    def none(parameter: nn.Parameter) -> None:
        parameter.grad = None

    @staticmethod
    def sparse(parameter: nn.Parameter) -> torch.Tensor:
        parameter.grad = torch.zeros_like(parameter).to_sparse()
        return parameter.grad

    @staticmethod
    def contiguous(parameter: nn.Parameter) -> torch.Tensor:
        parameter.grad = integers(parameter).contiguous()
        return parameter.grad

    @staticmethod
    def last(parameter: nn.Parameter) -> torch.Tensor:
        parameter.grad = integers(parameter).contiguous(memory_format=torch.channels_last)
        return parameter.grad


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["none", "sparse", "contiguous", "last"])
def test_odd_gradients_are_taken_as_they_are(kind: str, memory: torch.memory_format) -> None:
    model = kernels(3).to(memory_format=memory)
    carrier = carrier_for(model)
    blocks = drawn(carrier, 60)
    named = dict(model.named_parameters())
    placement = Placement(carrier, blocks, named)
    for parameter in named.values():
        parameter.grad = integers(parameter)
    getattr(Gradients, kind)(model[1].weight)
    before = {at: None if p.grad is None else p.grad.clone() for at, p in named.items()}
    added = torch.randint(1, 8, (60, 64)).float()
    placement.add_to_gradients(added)
    skipped = kind in ("none", "sparse")
    moved = {}
    for at, parameter in named.items():
        if skipped and parameter is model[1].weight:
            assert parameter.grad is None or not parameter.grad.coalesce().values().any()
            moved[at] = torch.zeros_like(parameter)
        else:
            moved[at] = parameter.grad - before[at]
    names = [carrier.layout.tensors[carrier.locate(block).tensor].name for block in blocks]
    there = torch.tensor([not (skipped and name == "1.weight") for name in names])
    assert 0 < int(there.sum()) <= 60
    assert torch.equal(weights_at(carrier, blocks, moved), added.double() * there[:, None])


def test_gradients_of_kernels_of_one_by_one_may_have_any_strides_there() -> None:
    model = MODELS["one by one"]()
    carrier = carrier_for(model)
    placement = Placement(carrier, drawn(carrier, 20), dict(model.named_parameters()))
    for layer in model:
        out, into = layer.weight.shape[:2]
        layer.weight.grad = torch.zeros(out * into).as_strided((out, into, 1, 1), (into, 1, 7, 7))
    ones = torch.ones(20, 64)
    with Launches() as seen:
        placement.add_to_gradients(ones)
    assert seen.names == ["_foreach_add_"]
    assert sum(float(layer.weight.grad.sum()) for layer in model) == 20 * 64


@pytest.mark.parametrize(
    ("memory", "most"), [(torch.contiguous_format, 2), (torch.channels_last, 5)]
)
def test_as_many_launches_for_many_tensors_as_for_few(
    memory: torch.memory_format, most: int
) -> None:
    counts = []
    for depth in (2, 24):
        model = kernels(depth).to(memory_format=memory)
        carrier = carrier_for(model)
        placement = Placement(carrier, drawn(carrier, 50), dict(model.named_parameters()))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with Launches() as seen:
            placement.add_to_gradients(placement.gather())
        counts.append(seen.names)
    assert counts[0] == counts[1]
    assert len(counts[0]) <= most


def pressed(model: nn.Module, enrol: Enrol, **options: Any) -> Embedder:
    """A model that carries a mark, and what presses it in."""

    class Task:
        name, version, metric, floor = "staging", 1, "accuracy", ()
        build_model = staticmethod(lambda: model)
        evaluate = staticmethod(lambda model: 0.0)

    terms = enrol(task=Task(), **options).record.terms
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    return Embedder(terms, carrier, SEED, parameters_of(model))


def normed(depth: int) -> nn.Sequential:
    return nn.Sequential(
        *(layer for conv in kernels(depth, 64) for layer in (conv, nn.BatchNorm2d(64)))
    )


@pytest.mark.parametrize("name", PRESSES)
def test_a_press_never_waits_for_the_device_and_launches_little(enrol: Enrol, name: str) -> None:
    model = normed(8)
    embedder = pressed(model, enrol, scheme=name)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    embedder.add_gradient()
    with Launches() as seen:
        embedder.add_gradient()
    assert not [found for found in seen.names if found in WAITING]
    assert len(seen.names) <= (60 if name == "riga" else 16), seen.names
    assert any(parameter.grad.any() for parameter in model.parameters())


def test_zeroed_gradients_are_added_to_like_new_ones(enrol: Enrol) -> None:
    model = normed(2)
    embedder, found = pressed(model, enrol), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for set_to_none in (True, False, False):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.ones(2, 64, 8, 8)).sum().mul(0).backward()
        embedder.add_gradient()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert any(grad.any() for grad in found[0])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_autocast_does_not_round_the_mark(enrol: Enrol) -> None:
    model = normed(2)
    embedder, found = pressed(model, enrol), []
    for enabled in (False, True):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            embedder.add_gradient()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *found))


def test_new_memory_of_a_parameter_is_followed() -> None:
    model = kernels(2)
    carrier = carrier_for(model)
    blocks, named = drawn(carrier, 20), dict(model.named_parameters())
    placement = Placement(carrier, blocks, named)
    model.load_state_dict(kernels(2).state_dict(), assign=False)
    assert torch.equal(placement.gather(torch.float64), weights_at(carrier, blocks, named))
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)
    assert torch.equal(placement.gather(torch.float64), weights_at(carrier, blocks, named))
    model.to(memory_format=torch.channels_last)
    assert torch.equal(placement.gather(torch.float64), weights_at(carrier, blocks, named))
    model[1].weight.data = model[1].weight.data.bfloat16()
    with pytest.raises(WeightsError, match="moved, cast or reshaped") as caught:
        placement.gather()
    assert caught.value.place == "1.weight"
