"""Models and data sets that the paper pairs, and the tasks that stand for them here."""

import importlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from polo_lab import data, models
from polo_lab.tasks.pair import Pair as PairTask
from polo_lab.training import Course

_TASKS = "polo_lab.tasks.pairs"


@dataclass(frozen=True)
class Pair:
    """A model and a data set.

    Attributes:
        name: Model and data set, as tables name them.
        attribute: The task's name in its module.
        paper: What the paper calls the pair that it stands for; empty if it stands for none.
        epochs: Epochs of a run in the grid.
        rate: The highest learning rate where replay and attacks run: of plain SGD; for texts, with
            which a MiniBERT still guesses after 200 steps of SGD, of AdamW.
        module: The module that has the task.
    """

    name: str
    attribute: str
    paper: str
    epochs: int
    rate: float
    module: str = _TASKS

    @property
    def task(self) -> PairTask:
        """The task."""
        found: PairTask = getattr(importlib.import_module(self.module), self.attribute)
        return found

    def course(self, epochs: int, rate: float = 0.0) -> Course:
        """How it is trained.

        Args:
            epochs: Passes over the data.
            rate: The highest learning rate; 0 for the task's own.
        """
        usual = self.task.course
        return replace(usual, epochs=epochs, rate=rate or usual.rate)

    def job(self, epochs: int, seed: int) -> dict[str, Any]:
        """The same as settings of `polo_lab.baselines.job.Job`."""
        usual = self.task.course
        return {
            "task": f"{self.module}:{self.attribute}",
            "epochs": epochs,
            "batch": usual.batch,
            "rate": self.rate,
            "optimizer": usual.optimizer,
            "decay": usual.decay,
            "schedule": "linear",
            "rise": usual.rise,
            "seed": seed,
        }


tiny_digits = PairTask(
    "lab-tiny-digits",
    data.source("digits"),
    partial(models.build, "resnet-thin", 10, channels=1, blocks=(1, 1, 1)),
    Course(epochs=3, rate=0.1, batch=64, rise=0.15),
    (0.0, 0.1),
)
"""Digits and a residual network of 78,000 weights."""

_ALL = (
    Pair("resnet18/cifar10", "cifar10_resnet18", "resnet18/cifar-10", 20, 0.2),
    Pair("alexnet/cifar10", "cifar10_alexnet", "alexnet/cifar-10", 20, 0.05),
    Pair("resnet18/tinyimagenet100", "tinyimagenet100_resnet18", "resnet18/cifar-100", 20, 0.2),
    Pair(
        "wideresnet/tinyimagenet100", "tinyimagenet100_wideresnet", "wideresnet/cifar-100", 10, 0.1
    ),
    Pair("vgg16/tinyimagenet", "tinyimagenet_vgg16", "vgg16/tinyimagenet", 10, 0.05),
    Pair("resnet34/tinyimagenet", "tinyimagenet_resnet34", "resnet34/tinyimagenet", 10, 0.1),
    Pair("textcnn/agnews", "agnews_textcnn", "textcnn/ag-news", 20, 1e-3),
    Pair("minibert/agnews", "agnews_minibert", "minibert/ag-news", 20, 5e-4),
    Pair("efficientnet/cifar10", "cifar10_efficientnet", "efficientnet/cifar-10", 20, 0.1),
    Pair("tiny/digits", "tiny_digits", "", 3, 0.1, __name__),
)
PAIRS = {pair.name: pair for pair in _ALL}
GRID = tuple(pair.name for pair in _ALL[:8])
"""The eight pairs of the paper's tables, its headline first."""

HEADLINE = GRID[0]
LONG = 100
"""Epochs of the headline rows."""

QUICK = "tiny/digits"
"""What trimmed forms train: seconds on a processor."""
