"""Judging as on another machine: one that has another name, and rounds otherwise."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from polo.evidence.replay import platform
from polo_lab.effort.training import LabTask

NAME = "a processor that rounds otherwise"
DIGITS = 4 * 2.0**-23
"""A few units in the last binary digit of single precision."""


class Rounding:
    """A task on a machine that rounds otherwise: every gradient is off by a few last digits.

    What is zero stays so, as sums of zeros do on every machine.

    Args:
        task: The task.
    """

    def __init__(self, task: LabTask) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def train_step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Mapping[str, torch.Tensor],
    ) -> None:
        """The task's own step, but for the last digit of its gradients."""
        generator = torch.Generator().manual_seed(torch.initial_seed())

        @torch.no_grad()
        def disturb(*_: object) -> None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    drawn = torch.randn(parameter.shape, generator=generator).to(parameter.device)
                    parameter.grad += DIGITS * parameter.grad * drawn

        handle = optimizer.register_step_pre_hook(disturb)
        try:
            self._task.train_step(model, optimizer, batch)
        finally:
            handle.remove()


@contextmanager
def elsewhere() -> Iterator[None]:
    """For a while this machine is said to be another one than everything was trained on."""
    real = platform.describe
    with patch.object(platform, "describe", lambda device: {**real(device), "name": NAME}):
        yield
