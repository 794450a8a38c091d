"""Steps of training, none of which waits for the device."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from torch.nn import functional

from polo_lab.training.course import Course
from polo_lab.training.feed import Batch, Feed

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OnStep = Callable[[int], None]
"""Called after every step with the number of steps done."""

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`."""

_TRIES = 3
"""Passes until a compiled step is what it stays: one compiles, one is recorded, one is replayed."""


class Loop:
    """A model, its data and its optimizer, ready to take steps.

    First passes are made when it is built, so that compiling and choosing kernels is not part of
    any step; the model is left as it was. Of compiled loops one is used at a time: building another
    makes it compile again. One loop can train many times (`restart`), compiled once.

    Args:
        model: The model, on the feed's device.
        feed: The data.
        course: How it is trained.
        optimizer: The optimizer; by default the course's.

    Attributes:
        compiled: What `torch.compile` was asked for; empty if nothing or if it failed.
        problem: Why compiling failed; steps are then taken without it.
        preparing: Seconds that the first passes took.
    """

    def __init__(
        self,
        model: nn.Module,
        feed: Feed,
        course: Course,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.model, self.feed, self.course = model, feed, course
        if course.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = optimizer or course.make_optimizer(model)
        useless = course.compile in MODES and feed.device.type == "cpu"
        self.compiled, self.problem = "" if useless else course.compile, ""
        began = time.perf_counter()
        with _tuned(feed.device):
            self._loss = self._prepared()
            self.wait()
        self.preparing = time.perf_counter() - began

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.feed.steps(self.course)

    def restart(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Begin anew: the same model with other weights, and an optimizer that knows nothing.

        Weights are copied into the memory that compiled steps know.

        Args:
            weights: A state of the model.
        """
        self.model.zero_grad(set_to_none=True)
        self.model.load_state_dict(weights)
        self.optimizer = self.course.make_optimizer(self.model)
        self.preparing = 0.0

    def run(self, first: int, last: int, on_step: OnStep | None = None) -> torch.Tensor:
        """Take steps, counted from the beginning of the training.

        Args:
            first: The first step.
            last: The step to stop before.
            on_step: Called after every step.

        Returns:
            The sum of the losses, on the device.
        """
        total = self.steps * self.course.epochs
        self.model.train()
        losses = torch.zeros((), device=self.feed.device)
        with _tuned(self.feed.device):
            for step, batch in enumerate(self._batches(first, last), first):
                rate = self.course.rate_at(step / total)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                losses += self._step(batch)
                if on_step:
                    on_step(step + 1)
        return losses

    def wait(self) -> None:
        """Return when the device has done everything that it was given."""
        if self.feed.device.type == "cuda":
            torch.cuda.synchronize(self.feed.device)

    def _batches(self, first: int, last: int) -> Iterator[Batch]:
        while first < last:
            epoch, start = divmod(first, self.steps)
            stop = min(self.steps, start + last - first)
            yield from self.feed.batches(self.course, epoch, start, stop)
            first += stop - start

    def _step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(*batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _prepared(self) -> Loss:
        """The loss, compiled if that is asked for and works."""
        plain = loss_of(self.model, self.course, self.feed.device)
        if self.compiled:
            try:
                made = compiled(plain, self.compiled)
                for _ in range(_TRIES):
                    self._try(made)
                return made
            except Exception as error:
                # Compilers fail in many ways; the run goes on without, and says so.
                self.problem = f"{type(error).__name__}: {error}"[:300]
                self.compiled = ""
        self._try(plain)
        return plain

    def _try(self, loss: Loss) -> None:
        """Forward and backward on the first batch, without a trace."""
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        cards = [self.feed.device] if self.feed.device.type == "cuda" else []
        self.model.train()
        try:
            with torch.random.fork_rng(devices=cards):
                loss(*next(self.feed.batches(self.course, 0, 0, 1))).backward()
        finally:
            self.model.zero_grad(set_to_none=True)
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)


def loss_of(model: nn.Module, course: Course, device: torch.device) -> Loss:
    """Mean cross-entropy of a batch; layers run in the course's precision."""
    dtype = course.dtype(device)

    def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            scores = model(inputs)
        return functional.cross_entropy(
            scores.flatten(0, -2).float(), labels.flatten(), label_smoothing=course.smoothing
        )

    return loss


def compiled(loss: Callable[..., torch.Tensor], how: str) -> Callable[..., torch.Tensor]:
    """A loss by `torch.compile`, in one of its modes or by another backend; others are dropped."""
    # Versions of one function are limited, and each model makes one; beyond that nothing would be
    # compiled any more, without a word.
    torch.compiler.reset()
    if how in MODES:
        return torch.compile(loss, mode=how, dynamic=False)
    return torch.compile(loss, backend=how, dynamic=False)


@contextlib.contextmanager
def _tuned(device: torch.device) -> Iterator[None]:
    """Batches have one size, so that the fastest kernels are worth looking for."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
