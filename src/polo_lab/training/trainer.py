"""A whole training, with or without a prover."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import polo
from polo.errors import PoloError
from polo_lab.training.course import Course
from polo_lab.training.feed import Feed
from polo_lab.training.loop import Loop, OnStep


class DivergedError(PoloError):
    """A training whose loss is no number any more."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch was like.

    Attributes:
        number: Its number, from 0.
        loss: Mean training loss.
        seconds: What its steps took, until the device was done.
        sealing: What `prover.end_epoch` took after them.
        eta: The current mark's detection rate at its end, before any finishing step; None without
            a prover, or where the terms allow no further shard.
    """

    number: int
    loss: float
    seconds: float
    sealing: float = 0.0
    eta: float | None = None


OnEpoch = Callable[[Epoch], None]


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        model: The model.
        optimizer: The optimizer as it ended.
        epochs: Its epochs; those before a resumed proof's stand are missing.
        steps: Optimizer steps of all of them.
        seconds: What training took: steps, sealing, and what was done after epochs.
        preparing: What came before the first step: compiling, choosing kernels.
        compiled: How steps were compiled; empty if they were not.
        problem: Why compiling failed; empty if it did not.
        precision: What layers ran in.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epochs: tuple[Epoch, ...]
    steps: int
    seconds: float
    preparing: float
    compiled: str
    problem: str
    precision: str


def train(
    model: nn.Module,
    feed: Feed,
    course: Course,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    prover: polo.Prover | None = None,
    metric: Callable[[], float] | None = None,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
) -> Trained:
    """Train a model.

    Args:
        model: The model; it is moved to the feed's device.
        feed: The data.
        course: How to train.
        optimizer: The optimizer; by default the course's.
        prover: Presses marks; every epoch may end in a shard. What it has done already is not done
            again. The caller finishes it.
        metric: Measures the sealed weights for the proof; by default the accuracy on the test part.
        on_step: Called after every step with the number of steps done.
        on_epoch: Called after every epoch, and after its shard was sealed.

    Raises:
        DivergedError: The loss is no number any more.
    """
    model.to(feed.device)
    loop = Loop(model, feed, course, optimizer)
    return train_in(loop, prover=prover, metric=metric, on_step=on_step, on_epoch=on_epoch)


def train_in(
    loop: Loop,
    *,
    prover: polo.Prover | None = None,
    metric: Callable[[], float] | None = None,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
) -> Trained:
    """Train in a loop that was built before; everything else is as in `train`."""
    model, feed, course = loop.model, loop.feed, loop.course
    done: list[Epoch] = []
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        if prover:
            measured = metric or (lambda: evaluate(model, feed, course))
            stack.enter_context(prover.attach(model, loop.optimizer, evaluate=measured))
        for number in range(prover.epoch if prover else 0, course.epochs):
            done.append(_epoch(loop, number, prover, on_step))
            if on_epoch:
                on_epoch(done[-1])
    loop.wait()
    return Trained(
        model=model,
        optimizer=loop.optimizer,
        epochs=tuple(done),
        steps=len(done) * loop.steps,
        seconds=time.perf_counter() - began,
        preparing=loop.preparing,
        compiled=loop.compiled,
        problem=loop.problem,
        precision=str(course.dtype(feed.device)).removeprefix("torch."),
    )


@torch.no_grad()
def evaluate(model: nn.Module, feed: Feed, course: Course) -> float:
    """Accuracy on the test part, in large batches; the model ends in the mode it was in."""
    training = model.training
    model.eval()
    dtype, count = course.dtype(feed.device), 0
    right = torch.zeros((), dtype=torch.int64, device=feed.device)
    with torch.autocast(feed.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        for inputs, labels in feed.test(course):
            right += (model(inputs).argmax(-1) == labels).sum()
            count += labels.numel()
    model.train(training)
    return int(right) / count


def _epoch(loop: Loop, number: int, prover: polo.Prover | None, on_step: OnStep | None) -> Epoch:
    began = time.perf_counter()
    losses = loop.run(number * loop.steps, (number + 1) * loop.steps, on_step)
    loss = float(losses) / loop.steps
    stepped = time.perf_counter()
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss is {loss} after epoch {number + 1}",
            advice="Lower the learning rate or the mark's strength.",
        )
    progress = prover.end_epoch() if prover else None
    eta = progress.reading.eta if progress else None
    return Epoch(number, loss, stepped - began, time.perf_counter() - stepped, eta)
