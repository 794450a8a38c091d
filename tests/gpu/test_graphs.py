"""Presses that are recorded and launched as a whole do what they do launch by launch."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.embedding.embedder import Embedder
from polo.embedding.graphs import _MOST_GRAPHS, _MOST_PLACES, Graphs
from polo.embedding.placement import parameters_of
from polo.errors import WeightsError
from polo.watermark import carrier_of
from polo.watermark.schemes import SCHEMES
from polo.weights import checkpoint_of
from polo_lab.models.resnet import resnet18

SEED = bytes(range(32))
LOADS = {"fedipr": 0.5}


def embedder_of(model: nn.Module, scheme: str, **options: Any) -> Embedder:
    layout = checkpoint_of(model).layout
    terms = polo.make_terms(layout, scheme=scheme, bits=2048, load=LOADS.get(scheme), **options)
    return Embedder(terms, carrier_of(terms, layout), SEED, parameters_of(model))


def network(memory: torch.memory_format = torch.contiguous_format) -> nn.Module:
    torch.manual_seed(1)
    return resnet18().cuda().to(memory_format=memory)


def pressed(model: nn.Module, embedder: Embedder, steps: int, fresh: bool) -> list[torch.Tensor]:
    """Steps of plain descent on the mark alone; the weights after each."""
    found = []
    for step in range(steps):
        for number, parameter in enumerate(model.parameters()):
            if fresh or parameter.grad is None:
                parameter.grad = None
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()
            # A frozen layer has no gradient in some steps.
            if step % 4 == 3 and number == 3:
                parameter.grad = None
        embedder.add_gradient()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return found


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_recorded_presses_are_the_same_to_the_bit(
    scheme: str, fresh: bool, memory: torch.memory_format
) -> None:
    sides = []
    for recorded in (True, False):
        model = network(memory)
        embedder = embedder_of(model, scheme)
        if not recorded:
            embedder._graphs = None
        sides.append(pressed(model, embedder, 24, fresh))
        # Fresh gradients may lie elsewhere every time; then nothing is recorded.
        assert not recorded or fresh or embedder._graphs._graphs
    assert all(map(torch.equal, *sides))


def test_gradients_that_are_always_elsewhere_are_let_alone() -> None:
    model = network()
    embedder = embedder_of(model, "ednn")
    kept = []
    for _ in range(_MOST_PLACES + 8):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.ndim == 1 else None
        first = next(p for p in model.parameters() if p.ndim == 4)
        first.grad = torch.zeros_like(first)
        kept.append(first.grad)
        embedder.add_gradient()
    assert len(embedder._graphs._graphs) <= _MOST_GRAPHS


def test_moved_parameters_are_noticed() -> None:
    model = network()
    embedder = embedder_of(model, "ednn")
    pressed(model, embedder, 6, fresh=False)
    assert embedder._graphs._graphs
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    before = [p.detach().clone() for p in model.parameters()]
    pressed(model, embedder, 1, fresh=False)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model.to(torch.bfloat16)
    with pytest.raises(WeightsError, match="moved, cast or reshaped"):
        embedder.add_gradient()


def test_what_cannot_be_recorded_is_done_all_the_same() -> None:
    graphs = Graphs(torch.device("cuda"))
    total = torch.zeros(1, device="cuda")

    def work() -> None:
        total.add_(float((total * 0 + 1).sum().item()))

    for _ in range(8):
        graphs.run("here", work)
    assert total.item() == 8
    assert not graphs._graphs


def test_recording_adds_little_memory_and_gives_it_back() -> None:
    model = network()
    pressed(model, embedder_of(model, "ednn"), 1, fresh=False)
    before, found = reserved(), []
    for _ in range(4):
        # As from shard to shard.
        embedder = embedder_of(model, "riga")
        pressed(model, embedder, 24, fresh=False)
        assert embedder._graphs._graphs
        found.append(reserved() - before)
        del embedder
    assert found[0] <= 20e6, found
    assert found[-1] <= found[0] + 2e6, found


def reserved() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_two_streams_do_not_share_memory() -> None:
    """Two trainings side by side in one process, each on a stream of its own."""
    sides = []
    for together in (False, True):
        models = [network() for _ in range(2)]
        embedders = [embedder_of(model, "ednn", strength=1.0 + n) for n, model in enumerate(models)]
        streams = [torch.cuda.Stream() for _ in models]
        torch.cuda.synchronize()
        for _ in range(12):
            for model, embedder, stream in zip(models, embedders, streams, strict=True):
                with torch.cuda.stream(stream):
                    pressed(model, embedder, 1, fresh=False)
                if not together:
                    torch.cuda.synchronize()
        torch.cuda.synchronize()
        sides.append([p.detach().clone() for model in models for p in model.parameters()])
    assert all(map(torch.equal, *sides))


def test_a_loop_that_records_its_own_step_is_not_disturbed() -> None:
    """A press inside somebody else's graph becomes part of it."""
    model = network()
    embedder = embedder_of(model, "ednn")
    pressed(model, embedder, 1, fresh=False)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    run: Callable[[], None] = embedder.add_gradient
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(4):
            run()
    carriers = [p for p in model.parameters() if p.ndim == 4]
    for parameter in carriers:
        parameter.grad.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert any(bool(p.grad.any()) for p in carriers)
