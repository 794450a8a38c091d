"""Recording on a GPU: the same digests and the same training, little memory, no waiting."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from polo.evidence.replay import platform, state
from polo.evidence.replay.background import Stages
from polo.evidence.replay.record import Boundary
from polo.evidence.replay.recorder import Recorder


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "momentum":
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=name == "fused")


@dataclass
class Run:
    """A convolutional network in training on the GPU."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def begin(
        cls,
        name: str,
        memory: torch.memory_format = torch.contiguous_format,
        classes: int = 1000,
    ) -> "Run":
        torch.manual_seed(4)
        model = nn.Sequential(
            nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, classes),
        )  # fmt: skip
        model = model.cuda().to(memory_format=memory)
        return cls(model, optimizer_of(name, model))

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            scores = self.model(torch.randn(16, 3, 16, 16, device="cuda"))
        scores.float().pow(2).mean().backward()
        self.optimizer.step()

    def digests(self) -> Boundary:
        return Boundary(*state.state_digests(self.model, self.optimizer))

    def copies(self) -> state.Snapshot:
        names = state.trained_names(self.model)
        model, rest = state.named_state(self.model, self.optimizer)
        return (
            {name: model[name].detach().clone() for name in names},
            {name: value.clone() for name, value in rest.items()},
        )


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Two runs are compared to the bit, so kernels must be those that repeat."""
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


LARGE = 30_000
"""Classes of a model so large that a process hashes it, and no thread is needed beside it."""


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["momentum", "adamw", "fused"])
@pytest.mark.parametrize("classes", [1000, LARGE])
def test_boundaries_and_moves_are_those_found_at_once(
    name: str, memory: torch.memory_format, classes: int
) -> None:
    run = Run.begin(name, memory, classes)
    recorder = Recorder(run.model, run.optimizer, 3)
    for steps in (10, 9):
        recorder.start()
        assert isinstance(recorder._beside, Stages) == (classes == LARGE)
        wanted, kept = [run.digests()], [run.copies()]
        for step in range(1, steps + 1):
            run.step()
            recorder.after_step()
            if step % 3 == 0 or step == steps:
                wanted.append(run.digests())
                kept.append(run.copies())
        assert recorder.finish().boundaries == tuple(wanted)
        with torch.no_grad():
            run.model[0].weight.add_(0.01)
        found = recorder.sealed(run.model)
        ends = [*kept[1:], run.copies()]
        moves = [state.moves(a, b) for a, b in zip(kept, ends, strict=True)]
        for got, right in zip(found.moves, [*moves[:-1], (moves[-1][0], 0)], strict=True):
            assert got == pytest.approx(right, rel=1e-9, abs=2)
        assert platform.parse(found.platform, "record")["device"] == "cuda"
    recorder.abandon()


@pytest.mark.parametrize("classes", [1000, LARGE])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_training_is_the_same_to_the_bit(name: str, classes: int) -> None:
    found = []
    for every in (None, 1, 4):
        run = Run.begin(name, classes=classes)
        recorder = Recorder(run.model, run.optimizer, every or 1)
        if every:
            recorder.start()
        for _ in range(12):
            run.step()
            if every:
                recorder.after_step()
        found.append((run.digests(), torch.cuda.get_rng_state().tolist()))
        recorder.abandon()
    assert found[0] == found[1] == found[2]


def test_a_run_without_pauses_on_a_stream_of_its_own() -> None:
    plain = Run.begin("momentum")
    wanted = []
    for step in range(1, 65):
        plain.step()
        if step % 4 == 0:
            wanted.append(plain.digests())
    run = Run.begin("momentum")
    recorder = Recorder(run.model, run.optimizer, 4)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        recorder.start()
        for _ in range(64):
            run.step()
            recorder.after_step()
        assert recorder.finish().boundaries[1:] == tuple(wanted)
    recorder.abandon()


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_graphs_follow_tensors_that_lie_elsewhere(name: str) -> None:
    run = Run.begin(name, classes=LARGE)
    recorder = Recorder(run.model, run.optimizer, 1)
    weight = run.model[-1].weight

    def elsewhere() -> None:
        weight.data = weight.data.clone()

    def turned() -> None:
        # The same address, and another order.
        memory = weight.data
        strides = (1, LARGE) if memory.is_contiguous() else (64, 1)
        weight.data = memory.as_strided(memory.shape, strides).copy_(memory.clone())

    for _ in range(2):
        recorder.start()
        wanted, kept = [run.digests()], [run.copies()]
        for change in (None, elsewhere, turned, None):
            if change:
                change()
            for _ in range(9):
                run.step()
                recorder.after_step()
                wanted.append(run.digests())
                kept.append(run.copies())
            lane = recorder._notary._lanes[weight.device]
            assert len(lane.graphs._graphs) >= 2, "of every pair of slots"
            for slot in recorder._slots:
                assert len(slot._graphs[weight.device]._graphs) == 1, "of the tensors as they are"
        found = recorder.finish()
        assert found.boundaries == tuple(wanted)
        moves = [state.moves(a, b) for a, b in itertools.pairwise(kept)]
        for got, right in zip(found.moves, moves, strict=True):
            assert got == pytest.approx(right, rel=1e-9, abs=2)
    recorder.abandon()


@pytest.mark.parametrize("narrow", [False, True])
def test_what_goes_on_after_its_end_is_measured_from_where_it_was(narrow: bool) -> None:
    """At an end the snapshot before is kept, which graphs write over elsewhere."""
    run = Run.begin("momentum", classes=LARGE)
    if narrow:
        run.model[-1].to(torch.bfloat16)
    recorder = Recorder(run.model, run.optimizer, 2)
    for _ in range(2):
        recorder.start()
        wanted, kept = [run.digests()], [run.copies()]
        for step in range(1, 27):
            run.step()
            recorder.after_step()
            if step % 2 == 0:
                wanted.append(run.digests())
                kept.append(run.copies())
            elif step % 5 == 0:
                assert recorder.finish().boundaries[-1] == run.digests()
        found = recorder.finish()
        assert found.boundaries == tuple(wanted)
        moves = [state.moves(a, b) for a, b in itertools.pairwise(kept)]
        for got, right in zip(found.moves, moves, strict=True):
            assert got == pytest.approx(right, rel=1e-6 if narrow else 1e-9, abs=2)
    recorder.abandon()


def test_recorders_that_come_and_go_share_what_graphs_keep() -> None:
    run = Run.begin("momentum", classes=LARGE)
    run.step()
    reserved = []
    for _ in range(6):
        recorder = Recorder(run.model, run.optimizer, 1)
        recorder.start()
        for _ in range(9):
            run.step()
            recorder.after_step()
        recorder.wait()
        recorder.abandon()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[2:]) <= reserved[1] + 2**21


def test_a_snapshot_is_asked_for_and_not_waited_for() -> None:
    run = Run.begin("momentum", classes=LARGE)
    recorder = Recorder(run.model, run.optimizer, 1)
    recorder.start()
    for _ in range(3):
        run.step()
        recorder.after_step()
    recorder.wait()
    clock = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run.step()
    torch.cuda.synchronize()
    clock[0].record()
    torch.cuda._sleep(10**9)
    clock[1].record()
    began = time.perf_counter()
    recorder.after_step()
    waited = time.perf_counter() - began
    recorder.wait()
    busy = clock[0].elapsed_time(clock[1]) / 1000
    assert busy > 0.2
    assert waited < busy / 2
    recorder.abandon()


@pytest.mark.parametrize("classes", [1000, LARGE])
def test_two_copies_of_the_state_are_all_that_the_device_holds(classes: int) -> None:
    run = Run.begin("adamw", classes=classes)
    for _ in range(3):
        run.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    recorder = Recorder(run.model, run.optimizer, 1)
    recorder.start()
    for _ in range(20):
        run.step()
        recorder.after_step()
    recorder.wait()
    parts = state.state_checkpoints(run.model, run.optimizer)
    size = sum(part.layout.size for part in parts if part)
    assert torch.cuda.memory_allocated() - before < 2.1 * size + 2**20
    recorder.abandon()
    assert torch.cuda.memory_allocated() - before < 2**20


def test_settings_of_the_device_are_described_and_adopted() -> None:
    here = platform.describe("cuda")
    assert len(platform.text_of(here)) <= platform.SIZE
    text = platform.text_of({**here, "benchmark": "on", "conv": "ieee"})
    with platform.adopted(text):
        assert platform.describe("cuda") == platform.parse(text, "there")
    with platform.adopted(platform.text_of({**here, "matmul": "bf16"})):
        assert platform.describe("cuda") == here
    assert platform.describe("cuda") == here
