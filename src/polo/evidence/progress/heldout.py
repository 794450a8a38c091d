"""Held-out loss and its gradient at a checkpoint. torch.

Batch-norm layers normalise by the held-out data themselves. Their stored statistics say what the
last batches were like: at the start nothing yet, and after a sealing what was before the noise. The
gradient that training follows does not depend on them either.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from polo.embedding.placement import parameters_of
from polo.evidence.progress.sample import Sample, Values
from polo.tasks import Task
from polo.tasks.training import HeldOut
from polo.weights.checkpoint import Checkpoint
from polo.weights.loading import load_into


class HeldOutLoss:
    """A task's model, into which one checkpoint after another is loaded.

    Args:
        task: The verifier's own task, with held-out data.
        model: Its model.
    """

    def __init__(self, task: HeldOut, model: torch.nn.Module) -> None:
        self._task = task
        self._model = model

    def at(self, checkpoint: Checkpoint, sample: Sample) -> tuple[float, Values]:
        """The loss, and its gradient in the weights that are looked at."""
        load_into(self._model, checkpoint)
        self._model.zero_grad(set_to_none=True)
        with _own_statistics(self._model):
            loss = self._task.held_out_loss(self._model)
            loss.backward()
        slope = sample.gradients(parameters_of(self._model))
        self._model.zero_grad(set_to_none=True)
        return float(loss.detach()), slope


def held_out_loss_of(task: Task, device: str | None = None) -> HeldOutLoss | None:
    """What measures held-out loss for a task; None if the task holds nothing out."""
    if not isinstance(task, HeldOut):
        return None
    model = task.build_model()
    return HeldOutLoss(task, model.to(device) if device else model)


@contextlib.contextmanager
def _own_statistics(model: torch.nn.Module) -> Iterator[None]:
    """Let batch-norm layers use the statistics of what goes through them, and keep theirs."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    kept = [(norm.running_mean, norm.running_var) for norm in norms]
    try:
        for norm in norms:
            norm.running_mean = norm.running_var = None
        yield
    finally:
        for norm, (mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean, norm.running_var = mean, variance
