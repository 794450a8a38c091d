"""The hook on a GPU: it never waits for the device, launches little, and repeats to the bit."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.watermark import carrier_of
from polo.watermark.schemes import SCHEMES
from polo.weights import checkpoint_of
from polo_lab.models.resnet import resnet18

SEED = bytes(range(32))
LOADS = {"fedipr": 0.5}
CASES = [(name, "block") for name in SCHEMES] + [("ednn", "dense")]


def embedder_of(model: nn.Module, scheme: str, key: str = "block", **options: Any) -> Embedder:
    layout = checkpoint_of(model).layout
    terms = polo.make_terms(
        layout, scheme=scheme, key=key, bits=2048, load=LOADS.get(scheme), **options
    )
    return Embedder(terms, carrier_of(terms, layout), SEED, parameters_of(model))


def network(memory: torch.memory_format = torch.contiguous_format) -> nn.Module:
    torch.manual_seed(1)
    return resnet18().cuda().to(memory_format=memory)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        # It says that it may miss some waits.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("scheme", "key"), CASES)
def test_steps_with_the_hook_never_wait(scheme: str, key: str, memory: torch.memory_format) -> None:
    model = network(memory)
    embedder = embedder_of(model, scheme, key)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(8, 3, 32, 32, device="cuda")
    StepHook(optimizer, embedder.add_gradient, lambda: None)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images).square().mean()
        loss.backward()
        optimizer.step()

    step()
    with no_waiting():
        for _ in range(3):
            step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_fused_optimizer_with_a_scaler_never_waits_either() -> None:
    model = network()
    embedder = embedder_of(model, "ednn")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    StepHook(optimizer, embedder.add_gradient, lambda: None)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    images = torch.randn(8, 3, 32, 32, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(images).square().mean()
        scaler.scale(loss).backward()
        with no_waiting():
            # Not `update`, which is the loop's own; what the hook adds is in `step`.
            scaler.step(optimizer)
        scaler.update()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_press_is_the_same_as_on_the_processor(
    dtype: torch.dtype, memory: torch.memory_format
) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = network(memory).to(device=device, dtype=dtype)
        embedder = embedder_of(model, "ednn", strength=1.0)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        embedder.add_gradient()
        found.append([p.grad.cpu().double() for p in model.parameters()])
    here, there = (torch.cat([grad.reshape(-1) for grad in side]) for side in found)
    assert torch.equal(here != 0, there != 0)
    assert (here - there).norm() <= (1e-5 if dtype == torch.float32 else 1e-2) * here.norm()


@pytest.mark.parametrize(("scheme", "key"), CASES)
def test_a_press_repeats_to_the_bit(scheme: str, key: str) -> None:
    """Two embedders in the same state press alike: a prover's hook, and a replay."""
    model, found = network(), []
    for _ in range(2):
        embedder = embedder_of(model, scheme, key)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        embedder.add_gradient()
        found.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(("scheme", "key"), CASES)
def test_little_memory_is_added(scheme: str, key: str) -> None:
    model = network()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    # The workspace of the matrix library, which every training has.
    torch.bmm(*torch.ones(2, 1, 64, 64, device="cuda"))
    gc.collect()
    before = torch.cuda.memory_allocated()
    embedder = embedder_of(model, scheme, key)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        embedder.add_gradient()
    assert torch.cuda.memory_allocated() - before <= 20e6
    assert torch.cuda.max_memory_allocated() - before <= 20e6


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_as_few_launches_for_a_whole_network() -> None:
    model = network()
    embedder = embedder_of(model, "ednn")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(3):
        embedder.add_gradient()
    with torch.profiler.profile() as profile:
        embedder.add_gradient()
        torch.cuda.synchronize()
    launched = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    assert 0 < len(launched) <= 16, launched
