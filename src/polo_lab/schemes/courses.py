"""What is trained, and how: a task, its course, and the thief's share."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from polo_lab.data import Dataset, Part
from polo_lab.effort.training import LabTask
from polo_lab.tasks import DigitsConv, pairs
from polo_lab.tasks.norms import DigitsNorms
from polo_lab.tasks.pair import Pair
from polo_lab.training import Course, Feed, Loop


@dataclass(frozen=True)
class Subject:
    """A task and how it is trained.

    Attributes:
        task: Makes the task.
        title: What it is, for the page.
        course: How it is trained; each epoch may end in a shard.
        thief: Epochs that an overwriter spends, at the full rate.
    """

    task: Callable[[], LabTask]
    title: str
    course: Course
    thief: int = 5

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.course.epochs


_SMALL = Course(epochs=12, rate=0.03, batch=64, nesterov=False)

COURSES = {
    "digits": Subject(
        DigitsConv, "digits, two convolutions and two linear layers, 72,000 weights", _SMALL
    ),
    "norms": Subject(
        DigitsNorms,
        "digits, eight residual blocks, 540,000 weights and 4608 norm scales",
        replace(_SMALL, rate=0.05),
    ),
    "resnet18": Subject(
        lambda: pairs.cifar10_resnet18,
        "CIFAR-10, ResNet-18 in bfloat16, 11 million weights and 4800 norm scales",
        replace(pairs.SMALL_IMAGES, epochs=30),
    ),
}


def feed_of(task: LabTask, seed: int, device: torch.device) -> Feed:
    """A task's training data, in batches on a device."""
    if isinstance(task, Pair):
        return task.feed(seed, device)
    inputs, labels = task.train_columns().values()
    own = Part(inputs, labels)
    # The task tests for itself, so that one part will do.
    return Feed(Dataset(task.name, task.name, 0, lambda _: own), device=device, seed=seed)


class Further:
    """Epochs after the course, at its full rate, as somebody trains who took the model.

    Args:
        task: The task.
        subject: How it was trained.
        seed: Seed of the order of samples.
    """

    def __init__(self, task: LabTask, subject: Subject, seed: int) -> None:
        self._task, self._seed = task, seed
        self._course = replace(
            subject.course, schedule="constant", rise=0.0, epochs=max(1, subject.thief)
        )
        self._loop: Loop | None = None
        self._done = 0

    def epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass; every pass of one object trains the same model."""
        if self._loop is None:
            feed = feed_of(self._task, self._seed, next(model.parameters()).device)
            self._loop = Loop(model, feed, self._course, optimizer)
        steps = self._loop.steps
        self._loop.run(self._done * steps, (self._done + 1) * steps)
        self._done += 1
