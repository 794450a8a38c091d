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

__all__ = ["Column", "HeldOut", "Screening", "Trainable"]


@runtime_checkable
class Trainable(Protocol):
    """A task whose steps of training can be run again.

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
