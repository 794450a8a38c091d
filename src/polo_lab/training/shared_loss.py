"""One compiled loss for all models of a kind: whoever trains many of them waits for it once."""

from collections.abc import Callable

import torch
from torch import nn

from polo_lab.training.course import Course
from polo_lab.training.feed import Batch
from polo_lab.training.loop import MODES, compiled, loss_of

_TRIES = 2
"""First passes: one compiles, one shows that the outcome runs."""


class SharedLoss:
    """The loss of a model's batch, compiled for every model that is built alike.

    Other than a `Loop`, which is made for one model, it takes each model as an argument; steps are
    launched part by part. Of compiled ones one is used at a time: making another makes it compile
    again. Batches of another size, such as what is left over of a pass, run without compiling.

    Args:
        course: How models are trained; `compile` says whether to compile.
        device: Where.
        build: Builds a model to try with.
        batch: A whole batch to try with: inputs, as models take them, and labels.

    Attributes:
        compiled: What `torch.compile` was asked for; empty if nothing or if it failed.
        problem: Why compiling failed; steps are then taken without it.
    """

    def __init__(
        self,
        course: Course,
        device: torch.device,
        build: Callable[[], nn.Module],
        batch: Callable[[], Batch],
    ) -> None:
        self._course, self._device = course, device
        # Steps that are recorded as a whole are those of one model.
        how = "default" if course.compile in MODES else course.compile
        useless = how in MODES and device.type == "cpu"
        self.compiled, self.problem = "" if useless else how, ""
        self._size = -1
        if self.compiled:
            self._prepare(build, batch)

    def __call__(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Mean loss of a batch."""
        if len(labels) == self._size:
            return self._made(model, inputs, labels)
        return self._plain(model, inputs, labels)

    def _plain(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(model, self._course, self._device)(inputs, labels)

    def _prepare(self, build: Callable[[], nn.Module], batch: Callable[[], Batch]) -> None:
        """Compile now, on a model that nobody needs, and leave random numbers as they are."""
        cards = [self._device] if self._device.type == "cuda" else []
        try:
            made = compiled(self._plain, self.compiled)
            with torch.random.fork_rng(devices=cards), torch.enable_grad():
                model, (inputs, labels) = build().train(), batch()
                for _ in range(_TRIES):
                    made(model, inputs, labels).backward()
        except Exception as error:
            # Compilers fail in many ways; training goes on without, and says so.
            self.problem = f"{type(error).__name__}: {error}"[:300]
            self.compiled = ""
            return
        self._made, self._size = made, len(labels)
