"""A task whose training step the forger can replace."""

from collections.abc import Callable, Mapping

import torch

from polo_lab.effort.training import LabTask

Step = Callable[[torch.nn.Module, torch.optim.Optimizer, Mapping[str, torch.Tensor]], None]
"""What `train_step` of a task is."""


class Substitute:
    """The case's task, but for its step; counts what steps take.

    Attributes:
        step: The step that is taken.
        price: Share of a forward and backward pass that the step takes.
        rows: Samples that went forward and backward so far.
    """

    def __init__(self, task: LabTask) -> None:
        self.name = task.name
        self.version = task.version
        self.metric = task.metric
        self.floor = task.floor
        self.columns = task.columns
        self.build_model = task.build_model
        self.evaluate = task.evaluate
        self.own = task.train_step
        self.step: Step = task.train_step
        self.price = 1.0
        self.rows = 0.0

    def train_step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Mapping[str, torch.Tensor],
    ) -> None:
        """Take a step, the task's own or another."""
        self.rows += self.price * len(next(iter(batch.values())))
        self.step(model, optimizer, batch)

    def use(self, step: Step | None = None, price: float = 1.0) -> None:
        """Take another step from now on; by default the task's own."""
        self.step = step or self.own
        self.price = price
