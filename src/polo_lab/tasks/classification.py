"""What tasks that put samples into classes have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polo.tasks.training import Column

Part = tuple[torch.Tensor, torch.Tensor]
"""Inputs and labels."""


class Classification(ABC):
    """Inputs in column `input`, classes in column `label`.

    A task gives `columns`, `classes`, `build_model`, `train_part` and `test_part`; the test part is
    the public test set and the held-out data.
    """

    version = 1
    metric = "accuracy"
    columns: tuple[Column, ...]
    classes = 10
    held_out: int | None = None
    """Test samples that the held-out loss is taken on; None for all."""

    bounds: tuple[float, float] | None = None
    """What inputs of floating type lie between; None where their type says it."""

    @property
    @abstractmethod
    def train_part(self) -> Part:
        """Inputs and labels to train on."""

    @property
    @abstractmethod
    def test_part(self) -> Part:
        """Inputs and labels that training never sees."""

    def train_columns(self) -> dict[str, np.ndarray]:
        """The training part, column by column."""
        inputs, labels = self.train_part
        return {"input": inputs.numpy(), "label": labels.numpy()}

    def loss(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""
        scores = model(inputs)
        return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())

    def train_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Mapping[str, torch.Tensor],
    ) -> None:
        """One step on a batch."""
        device = next(model.parameters()).device
        model.train()
        optimizer.zero_grad()
        self.loss(model, batch["input"].to(device), batch["label"].to(device)).backward()
        optimizer.step()

    def refused(self, batch: Mapping[str, torch.Tensor]) -> str:
        """Labels that are no class, and inputs that are no such samples."""
        label = batch["label"]
        if not bool(((label >= 0) & (label < self.classes)).all()):
            return "a label that is no class"
        if self.bounds is None:
            return ""
        low, high = self.bounds
        inside = (batch["input"] >= low) & (batch["input"] <= high)
        return "" if bool(inside.all()) else f"an input outside of {low:g} to {high:g}"

    def held_out_loss(self, model: nn.Module) -> torch.Tensor:
        """Mean loss on the test part, or on its first samples."""
        device = next(model.parameters()).device
        inputs, labels = (part[: self.held_out].to(device) for part in self.test_part)
        training = model.training
        model.eval()
        loss = self.loss(model, inputs, labels)
        model.train(training)
        return loss

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on the test part."""
        device = next(model.parameters()).device
        inputs, labels = self.test_part
        training = model.training
        model.eval()
        guesses = model(inputs.to(device)).argmax(-1).cpu()
        model.train(training)
        return float((guesses == labels).double().mean())


def every_fourth(inputs: torch.Tensor, labels: torch.Tensor, *, test: bool) -> Part:
    """The test part, which is every fourth sample, or the rest."""
    wanted = (torch.arange(len(labels)) % 4 == 0) == test
    return inputs[wanted], labels[wanted]
