"""The optimizer hook on a training step of ResNet-18: every scheme, eager and compiled loops.

On a GPU: batches of 256 images of 32 × 32, bf16 autocast, marks of 2048 bits. The compiled loop is
that of the laboratory's trainer: channels last, forward and backward launched as a whole, a fused
optimizer. In every round each side trains the same number of steps on the same model and waits for
the device at the end; the first side rotates. One side has no hook, and all others are compared
with it, round by round. Elsewhere batches are small, blocks are single steps, and every step
presses.

Terms may ask for the mark at every eighth step only, and the same rounds have a side that presses
once in a block of eight. What one press costs is measured eight times as well where all eight steps
press: the figure is the best that both sides together say of it, if a press always costs the same.
What such blocks say alone is the benchmark `rare`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import presses
from benchmarks.figures import Benchmark, Figure, Target, missing, paired_of
from benchmarks.measure import Samples, rotate, spread
from benchmarks.presses import BITS, Case
from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo_lab.models.resnet import ResNet, resnet18

_LITTLE, _MORE = Target("at most", 1.015), Target("at most", 1.05)
TARGETS = {"ednn": _LITTLE, "fedipr": _LITTLE, "riga": _MORE}
PLAIN = "plain"
RARELY = 8


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        batch: Images of a batch.
        steps: Steps of a block.
        rounds: Alternations for the figures that have a target.
        fewer: Alternations for the others.
    """

    batch: int
    steps: int
    rounds: int
    fewer: int


def run(quick: bool) -> Iterator[Figure]:
    """Eager and compiled loops, other memory formats and schemes, and what a press is made of."""
    on_gpu = torch.cuda.is_available()
    size = Size(256, RARELY, 200, 25) if on_gpu else Size(32, 1, 40, 5)
    size = Size(4, 1, 2, 2) if quick else size
    bits = 128 if quick else BITS
    main = [Case(name, bits=bits) for name in presses.known(TARGETS)]
    others = [Case(name, bits=bits) for name in presses.known() if name not in TARGETS]
    others.append(Case("ednn", key="dense", bits=bits))
    with tuned():
        yield from presses.figures(_model(quick), [*main, *others])
        yield from _loop("compiled loop", Training.begin(quick, size, compiled=True), main,
                         size.rounds)  # fmt: skip
        yield from _loop("eager loop", Training.begin(quick, size), main, size.rounds)
        last = Training.begin(quick, size, memory=torch.channels_last)
        yield from _loop("eager loop, channels last", last, main, size.fewer)
        yield from _loop("eager loop", Training.begin(quick, size), others, size.fewer)


@dataclass
class Training:
    """A model in training on images that are on its device already."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    images: torch.Tensor
    labels: torch.Tensor
    steps: int
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    said: str

    @classmethod
    def begin(
        cls,
        quick: bool,
        size: Size,
        *,
        compiled: bool = False,
        memory: torch.memory_format = torch.contiguous_format,
    ) -> "Training":
        """A model like any other, with SGD and momentum; compiled as a good engineer would."""
        model = _model(quick)
        device = next(model.parameters()).device
        memory = torch.channels_last if compiled else memory
        model.to(memory_format=memory)  # type: ignore[call-overload]
        images = torch.randn(size.batch, 3, 32, 32, device=device).to(memory_format=memory)
        labels = torch.randint(0, 10, (size.batch,), device=device)
        fused = compiled and images.is_cuda
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=fused or None)

        def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=images.is_cuda):
                scores = model(images)
            return functional.cross_entropy(scores.float(), labels)

        if compiled:
            # Away from a GPU only the way through the compiler is tried, without code of its own.
            how: dict[str, Any] = {"mode": "reduce-overhead"} if fused else {"backend": "aot_eager"}
            loss = torch.compile(loss, dynamic=False, **how)
        said = f"batch {size.batch}" + (", bf16" if images.is_cuda else "")
        return cls(model, optimizer, images, labels, size.steps, loss, said)

    def block(self) -> None:
        """Some steps, done when this returns."""
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            self.loss(self.images, self.labels).backward()
            self.optimizer.step()
        if self.images.is_cuda:
            torch.cuda.synchronize()


class Pressed:
    """Blocks of training with a hook that presses one mark, and the time inside the hook.

    Args:
        training: The training.
        case: The mark.
        every: Steps from one press to the next.
    """

    def __init__(self, training: Training, case: Case, every: int = 1) -> None:
        self.case, self.every = case, every
        self.title = case.title if every == 1 else f"{case.title}, every {every} steps"
        self._training = training
        self._embedder: Embedder = presses.embedder_of(training.model, case)
        self._steps, self._inside = 0, 0.0
        self.inside: list[float] = []

    def block(self) -> None:
        """Some steps; the hook is there only meanwhile."""
        self._inside = 0.0
        hook = StepHook(self._training.optimizer, self._before, lambda: None)
        try:
            self._training.block()
        finally:
            hook.detach()
        self.inside.append(self._inside)

    def _before(self, scale: torch.Tensor | float) -> None:
        began = time.perf_counter()
        if self._steps % self.every == 0:
            self._embedder.add_gradient(scale)
        self._steps += 1
        self._inside += time.perf_counter() - began


def _loop(title: str, training: Training, cases: list[Case], rounds: int) -> Iterator[Figure]:
    """One figure for each case, and one where it presses rarely, if it has a target."""
    paces = {c.title: [1, RARELY] if _target(c, title) and training.steps % RARELY == 0 else [1]
             for c in cases}  # fmt: skip
    sides = [Pressed(training, case, every) for case in cases for every in paces[case.title]]
    try:
        blocks = {PLAIN: training.block, **{side.title: side.block for side in sides}}
        samples = rotate(blocks, rounds)
    except Exception as error:
        # Compilers fail in many ways, and the other figures must not be lost with this one.
        why = f"{type(error).__name__}: {error}"[:500]
        for side in sides:
            yield missing(f"{side.title}, {title}", "×", why, _target(side.case, title))
        return
    for side in sides:
        yield _figure(side, title, training, samples, rounds)


def _figure(side: Pressed, title: str, training: Training, samples: Samples, rounds: int) -> Figure:
    inside = _median(side.inside[-rounds:]) / training.steps
    figure = paired_of(
        f"{side.title}, {title}",
        {name: samples[name] for name in (side.title, PLAIN)},
        side.title,
        PLAIN,
        target=_target(side.case, title),
        note=f"{where()}, {training.said}, {rounds} alternations of {training.steps} steps",
        details={
            "milliseconds of a plain step": 1e3 * _median(samples[PLAIN]) / training.steps,
            "host milliseconds inside the hook, a step": 1e3 * inside,
        },
    )
    return figure if side.every == 1 else rarely(figure, samples[side.case.title], side.every)


def rarely(figure: Figure, always: list[float], every: int) -> Figure:
    """The figure of a side that presses once in a block, with what pressing always says.

    Args:
        figure: The figure, from its own samples alone.
        always: Samples of the same rounds in which every step presses.
        every: Steps of a block.
    """
    once, plain = (np.asarray(values) for values in figure.samples.values())
    rare, often = once / plain - 1, np.asarray(always) / plain - 1
    # Least squares for a cost that comes once in one side and `every` times in the other.
    return replace(figure, value=spread(1 + (rare + every * often) / (1 + every**2)))


def _target(case: Case, title: str) -> Target | None:
    return None if "," in title or case.key == "dense" else TARGETS.get(case.scheme)


def _model(quick: bool) -> nn.Module:
    torch.manual_seed(1)
    model = ResNet(width=64, blocks=(2,)) if quick else resnet18()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def where() -> str:
    """The device, and what trains on it."""
    if torch.cuda.is_available():
        return f"ResNet-18, {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} threads"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Let convolutions be as fast as they can: against a slow step every hook looks cheap."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


BENCHMARK = Benchmark("hook", "the optimizer hook on a ResNet-18 training step", run)
