"""The cases to measure on: every task with every optimizer and every schedule."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from polo_lab.effort.case import Case
from polo_lab.effort.plan import OPTIMIZERS, SCHEDULES, Plan
from polo_lab.effort.training import LabTask
from polo_lab.tasks import Cancer, Cifar, DigitsConv, DigitsMLP, Letters


@dataclass(frozen=True)
class Entry:
    """A task and what suits it.

    Attributes:
        task: Makes the task.
        title: What it is, for the page.
        rates: Learning rate of each optimizer.
        more: Further settings of its plans.
    """

    task: Callable[[], LabTask]
    title: str
    rates: Mapping[str, float]
    more: Mapping[str, int] = field(default_factory=dict)

    def plan(self, optimizer: str, schedule: str, tolerance: int = 0) -> Plan:
        """The plan for an optimizer, a schedule, and an allowance in millionths."""
        rate = self.rates[optimizer]
        return Plan(optimizer, schedule, rate, tolerance=tolerance, **self.more)


SMALL: dict[str, Entry] = {
    "digits": Entry(
        DigitsConv,
        "digits, two convolutions with batch-norm",
        {"sgd": 0.1, "momentum": 0.03, "adam": 0.002, "adamw": 0.002},
        # With 64 a pass would end in a batch of three, which spoils batch-norm's statistics.
        {"batch": 62},
    ),
    "digits-mlp": Entry(
        DigitsMLP,
        "digits, three linear layers with dropout",
        {"sgd": 0.2, "momentum": 0.04, "adam": 0.002, "adamw": 0.002},
        {"passes": 3},
    ),
    "cancer": Entry(
        Cancer,
        "breast cancer, three linear layers with layer-norm",
        {"sgd": 0.05, "momentum": 0.02, "adam": 0.001, "adamw": 0.001},
        {"passes": 4, "batch": 32},
    ),
    "letters": Entry(
        Letters,
        "next letter of English text, a transformer with tied weights",
        {"sgd": 0.5, "momentum": 0.1, "adam": 0.004, "adamw": 0.004},
        {"batch": 32},
    ),
}
"""Tasks that train in about a second on one core."""

LONG: dict[str, Entry] = {
    "digits-long": replace(
        SMALL["digits-mlp"],
        title="digits, three linear layers with dropout, in 660 segments",
        more={"passes": 10, "top": 0},
    ),
}
"""Tasks with over twenty times as many segments as are drawn; large moves are not looked at, so
that it is the draw alone that is measured."""

LARGE: dict[str, Entry] = {
    "resnet18": Entry(
        Cifar,
        "CIFAR-10, one of its five training files or all of them, ResNet-18 in bfloat16 with "
        "varied images",
        {"sgd": 0.1, "momentum": 0.05, "adam": 0.001, "adamw": 0.001},
        {"batch": 128, "every": 8, "draws": 16, "shards": 5},
    ),
}
"""Tasks that want a GPU."""

TASKS = {**SMALL, **LONG, **LARGE}


@dataclass(frozen=True)
class Key:
    """What a case is made from.

    Attributes:
        task: Name in `TASKS`.
        optimizer: One of `OPTIMIZERS`.
        schedule: One of `SCHEDULES`.
        seed: Seed of everything that is drawn.
        tolerance: Largest deviation that the terms allow where platforms differ, in millionths.
    """

    task: str
    optimizer: str
    schedule: str
    seed: int
    tolerance: int = 0

    def case(self, folder: Path) -> Case:
        """The case, in a folder of its own."""
        entry = TASKS[self.task]
        plan = entry.plan(self.optimizer, self.schedule, self.tolerance)
        return Case(entry.task(), plan, self.seed, folder)


def keys(count: int, tasks: tuple[str, ...] = tuple(SMALL), tolerance: int = 0) -> list[Key]:
    """So many cases, spread evenly over tasks, optimizers and schedules.

    >>> [f"{key.task} {key.optimizer} {key.schedule}" for key in keys(3)]
    ['digits sgd constant', 'digits-mlp sgd constant', 'cancer sgd constant']
    """
    kinds = [(t, o, s) for s, o, t in itertools.product(SCHEDULES, OPTIMIZERS, tasks)]
    return [Key(*kinds[at % len(kinds)], at, tolerance) for at in range(count)]
