"""Recording the training state beside a ResNet-18: what it costs a training step.

Two sides take turns: blocks of steps with the recorder and the same blocks without. A block with
it has one snapshot or two, each right after the first step of a segment, and ends when everything
that was recorded is hashed. So all that recording does is inside, and nothing of it falls into the
plain block that follows; where hashing is slower than training, the wait for it is inside, too.

The case with a target has the batch and the segments that `replay` is measured with. With such a
batch a GPU waits for Python, whose own jitter is larger than what is to be measured; so sides are
compared round by round, and a case with a larger batch stands beside. So does one with all else
that a prover does in a step of level replay: rate, seeds, a look at left-over gradients and, now
and then, at torch's settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import polo
from benchmarks.figures import Benchmark, Figure, Target, amount_of, paired_of, time_of
from benchmarks.measure import interleave, until_narrow
from polo.checks import counted
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.record import Record
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.state import state_checkpoints, state_digests
from polo.prover.recording import Recording
from polo.weights import checkpoint_of
from polo_lab.effort.plan import Plan
from polo_lab.models.resnet import ResNet, resnet18

EVERY = 8
_OVERHEAD = Target("at most", 1.02)
_BYTES = Target("at most", 100.0)

_PLANS = {
    "SGD with momentum": Plan("momentum", "cosine", 0.01),
    "AdamW": Plan("adamw", "cosine", 1e-4),
}
_SAMPLES = 50_000
"""As many as CIFAR-10 has. Which they are does not matter: images are on the device already."""


@dataclass(frozen=True)
class Case:
    """What is recorded how often, and measured by how many alternations of how many segments.

    There are at most `most`, as many as noise asks for, or else as many as there are at least.
    `whole` cases have all that a prover does for level replay, and others the recorder alone.
    """

    optimizer: str
    every: int
    rounds: int
    target: Target | None = None
    batch: int = 128
    segments: int = 2
    whole: bool = False
    most: int = 0

    @property
    def title(self) -> str:
        """What is measured."""
        return "with all of level replay" if self.whole else "recorded"


_CASES = [
    Case("SGD with momentum", EVERY, 400, _OVERHEAD, most=600),
    Case("SGD with momentum", EVERY, 200, whole=True),
    Case("AdamW", EVERY, 100),
]
# Elsewhere steps are too small to tell how often is too often.
_ON_GPU = [
    Case("SGD with momentum", 4, 100),
    Case("SGD with momentum", 16, 200, batch=512, segments=1),
    Case("SGD with momentum", 32, 25),
]


@dataclass(frozen=True)
class Training:
    """A model in training on images that are on its device already."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    plan: Plan
    images: torch.Tensor
    labels: torch.Tensor

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.images.device

    @property
    def state_bytes(self) -> int:
        """Bytes of model and optimizer state."""
        parts = state_checkpoints(self.model, self.optimizer)
        return sum(part.layout.size for part in parts if part)

    def step(self, side: "Side | None" = None) -> None:
        """One training step, in bf16 where there is a GPU."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.images.is_cuda):
            scores = self.model(self.images)
        functional.cross_entropy(scores.float(), self.labels).backward()
        if side:
            side.before_step()
        self.optimizer.step()
        if side:
            side.after_step()

    def settle(self) -> None:
        """Wait until the device has done all steps."""
        if self.images.is_cuda:
            torch.cuda.synchronize(self.device)


class Side(Protocol):
    """What is done beside training, in one long shard."""

    @property
    def seconds(self) -> float:
        """What the recorder took of training's time so far."""

    def before_step(self) -> None:
        """A step follows."""

    def after_step(self) -> None:
        """A step is done."""

    def wait(self) -> None:
        """Wait until all is noted."""

    def record(self) -> Record:
        """The record so far; nothing more is recorded."""


class Alone:
    """The recorder by itself."""

    def __init__(self, training: Training, every: int) -> None:
        self._model = training.model
        self._recorder = Recorder(training.model, training.optimizer, every)
        self._recorder.start()
        self.after_step, self.wait = self._recorder.after_step, self._recorder.wait

    @property
    def seconds(self) -> float:
        """What the recorder took of training's time so far."""
        return self._recorder.seconds

    def before_step(self) -> None:
        """Nothing is to be done."""

    def record(self) -> Record:
        """The record so far; nothing more is recorded."""
        found = self._recorder.sealed(self._model)
        self._recorder.abandon()
        return found


class Whole:
    """All that a prover does in a step of level replay."""

    def __init__(self, training: Training, every: int) -> None:
        source = DataSource({"number": np.arange(_SAMPLES)}, bytes(32))
        recipe = replace(training.plan, every=every).recipe(_SAMPLES)
        layout = checkpoint_of(training.model).layout
        terms = polo.make_terms(layout, replay=recipe, data=source.root)
        self._recording, self._steps = Recording(recipe, terms, source), 0
        self._recording.attach(training.model, training.optimizer, {})
        self._recording.begin(bytes(32), first=False)
        self.wait = self._recording.wait

    @property
    def seconds(self) -> float:
        """What the recorder took of training's time so far."""
        return self._recording.seconds

    def before_step(self) -> None:
        """A step follows."""
        self._recording.before_step(self._steps)

    def after_step(self) -> None:
        """A step is done."""
        self._steps += 1
        self._recording.after_step(self._steps)

    def record(self) -> Record:
        """The record so far; nothing more is recorded."""
        found = self._recording.sealed()
        self._recording.close()
        return found


def run(quick: bool) -> Iterator[Figure]:
    """Blocks with and without recording; a digest that training waits for; bytes and memory."""
    on_gpu = torch.cuda.is_available()
    for case in _CASES + _ON_GPU * on_gpu:
        training = _training(case.optimizer, small=quick or not on_gpu, batch=case.batch)
        yield from _recorded(training, replace(case, rounds=2, most=0) if quick else case)
    training = _training("SGD with momentum", small=quick or not on_gpu)
    yield _synchronous(training, 2 if quick else 20)


def _training(name: str, *, small: bool, batch: int = 128) -> Training:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    model = (ResNet(width=16, blocks=(1, 1)) if small else resnet18()).to(device)
    batch = 16 if small else batch
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    plan = _PLANS[name]
    training = Training(model, plan.recipe(_SAMPLES).optimizer(model), plan, images, labels)
    for _ in range(EVERY):
        training.step()
    training.settle()
    return training


def _recorded(training: Training, case: Case) -> Iterator[Figure]:
    _try(training, case)
    before, block = _allocated(training), case.segments * case.every
    side = _side(training, case)
    # From here on, snapshots come right after the first step of every segment of a block.
    for _ in range(case.every - 1):
        side.after_step()

    blocks, waited = 0, 0.0

    def recorded() -> None:
        nonlocal blocks, waited
        blocks += 1
        for _ in range(block):
            training.step(side)
        waited -= side.seconds
        side.wait()
        waited += side.seconds
        training.settle()

    def plain() -> None:
        for _ in range(block):
            training.step()
        training.settle()

    side.wait()
    earlier = side.seconds
    sides, most = {"recorded": recorded, "plain": plain}, case.most or case.rounds
    # The same figure, with more samples each time: a run that breaks off has not been in vain.
    for samples in until_narrow(sides, "recorded", "plain", least=case.rounds, most=most):
        extra = _allocated(training) - before
        yield paired_of(
            f"training {case.title} every {case.every} steps, {case.optimizer}, "
            f"batch {len(training.images)}",
            samples,
            "recorded",
            "plain",
            target=case.target,
            note=f"{case.optimizer}, {_where(training)}; {counted(case.segments, 'snapshot')} of "
            f"{training.state_bytes / 2**20:.0f} MiB in {block} steps, hashes included, "
            f"{len(samples['plain'])} alternations",
            details={
                "seconds inside the recorder, a block": (side.seconds - earlier) / blocks,
                "of them at its end, until all is hashed": waited / blocks,
                "device memory beyond training, in states": extra / training.state_bytes,
            },
        )
    record = side.record()
    _check(training, record)
    if case.target:
        twice = Record(record.boundaries * 2, record.moves * 2, record.platform)
        size, added = len(record.encode()), len(twice.encode()) - len(record.encode())
        yield amount_of(
            "bytes that a boundary adds to a record", "B", [added / len(record.boundaries)],
            target=_BYTES, note=f"the record of {record.segments} segments has {size}",
        )  # fmt: skip


def _side(training: Training, case: Case) -> Side:
    return (Whole if case.whole else Alone)(training, case.every)


def _try(training: Training, case: Case) -> None:
    """Record a segment and look at it, before any figure is made."""
    side = _side(training, case)
    for _ in range(case.every):
        training.step(side)
    side.wait()
    _check(training, side.record())


def _check(training: Training, record: Record) -> None:
    """A fast record of something else would be worth nothing."""
    last = record.boundaries[-1]
    if (last.model, last.rest) != state_digests(training.model, training.optimizer):
        raise RuntimeError("the record's last boundary is not the state that training is in")


def _synchronous(training: Training, rounds: int) -> Figure:
    """What recording would cost if training waited for it."""

    def digest() -> None:
        state_digests(training.model, training.optimizer)

    def step() -> None:
        training.step()
        training.settle()

    samples = interleave({"digest": digest, "step": step}, rounds)
    note = f"{training.state_bytes / 2**20:.0f} MiB, {_where(training)}"
    return time_of("a digest that training waits for", samples, "digest", "step", note=note)


def _where(training: Training) -> str:
    batch = f"batch {len(training.images)}"
    if training.images.is_cuda:
        return f"{torch.cuda.get_device_name(training.device)}, {batch}, bf16"
    return f"a small ResNet on {torch.get_num_threads()} threads, {batch}"


def _allocated(training: Training) -> int:
    return torch.cuda.memory_allocated(training.device) if training.images.is_cuda else 0


BENCHMARK = Benchmark("recording", "recording the training state beside training", run)
