"""What a task offers beyond `Task` where training itself is checked.

All interfaces belong to the verifier, like the task: level `replay` runs `train_step` on the
prover's opened samples, unless the task has them `refused`; level `progress` takes the gradient of
`held_out_loss`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from polo.protocol.effort import Column

if TYPE_CHECKING:
    import torch

__all__ = ["TARGETS", "Column", "HeldOut", "Screening", "Trainable", "inputs_of"]

TARGETS = ("label", "labels", "target", "targets", "y")
"""Columns that do not go into a model, where a task does not say which ones those are."""


@runtime_checkable
class Trainable(Protocol):
    """A task whose steps of training can be run again.

    A task may have `targets`, too, a tuple: the columns that do not go into the model, such as
    labels. Else those are the ones whose names are among `TARGETS`.

    Attributes:
        columns: What one sample consists of, sorted by name.
    """

    columns: tuple[Column, ...]

    def train_step(
        self,
        model: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        batch: Mapping[str, "torch.Tensor"],
    ) -> None:
        """One step: `zero_grad`, forward, backward, exactly one `optimizer.step()`.

        The model is put into training mode and the batch moved to the model's device. Whatever
        is drawn at random comes from the global generators, which were seeded for this step;
        `torch.initial_seed()` tells with what.
        """


def inputs_of(task: Trainable) -> tuple[str, ...]:
    """The columns that go into a task's model; all of them if it has no others."""
    names = tuple(column.name for column in task.columns)
    targets = getattr(task, "targets", TARGETS)
    return tuple(name for name in names if name not in targets) or names


@runtime_checkable
class Screening(Protocol):
    """A task that says which samples nobody can have trained on honestly."""

    def refused(self, batch: Mapping[str, "torch.Tensor"]) -> str:
        """What is wrong with samples that were shown, in a few words; empty if nothing is.

        Refuse what the loss leaves out and honest data do not hold, such as labels that are no
        class: whoever trains on such samples need not pass them through the model. Refuse inputs
        beyond what there is, such as pixels above 1: honest steps on inputs that are far too large
        silence most of a network, and what is left of it costs less to train.
        """


@runtime_checkable
class HeldOut(Protocol):
    """A task with public data that training never sees."""

    def held_out_loss(self, model: "torch.nn.Module") -> "torch.Tensor":
        """Mean loss on the held-out data, differentiable; the model ends in the mode it was in."""
