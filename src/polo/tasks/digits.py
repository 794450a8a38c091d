"""The digits task: scikit-learn's 1,797 real 8×8 digits, and a small convolutional network."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from polo.errors import MissingError
from polo.tasks.training import Column

_TEST_EVERY = 4


class Digits:
    """Recognise handwritten digits; every fourth image is the public test set."""

    name = "digits"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.20, 0.40, 0.60, 0.75, 0.85)
    columns: tuple[Column, ...] = (Column("image", "F32", (1, 8, 8)), Column("label", "I64", ()))

    @cached_property
    def _data(self) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise MissingError(
                "the digits task needs scikit-learn",
                advice="pip install 'polo-proof[quickstart]'",
            ) from error
        found = load_digits()
        images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
        return images, torch.tensor(found.target, dtype=torch.int64)

    def _part(self, test: bool) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self._data
        wanted = (torch.arange(len(labels)) % _TEST_EVERY == 0) == test
        return images[wanted], labels[wanted]

    @property
    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels to train on."""
        return self._part(test=False)

    @property
    def test_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels to test on."""
        return self._part(test=True)

    def build_model(self) -> nn.Module:
        """Two convolutions and two linear layers, about 72,000 weights."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on the test images."""
        images, labels = self.test_data
        training = model.training
        model.eval()
        device = next(model.parameters()).device
        guesses = model(images.to(device)).argmax(1).cpu()
        model.train(training)
        return float((guesses == labels).float().mean())

    def held_out_loss(self, model: nn.Module) -> torch.Tensor:
        """Mean cross-entropy on the test images, differentiable."""
        images, labels = self.test_data
        training = model.training
        model.eval()
        device = next(model.parameters()).device
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        model.train(training)
        return loss

    def train_columns(self) -> dict[str, NDArray[Any]]:
        """The training images and labels as arrays, one row a sample."""
        images, labels = self.train_data
        return {"image": images.numpy(), "label": labels.numpy()}

    def train_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Mapping[str, torch.Tensor],
    ) -> None:
        """One step on the cross-entropy of a batch of images and labels."""
        device = next(model.parameters()).device
        model.train()
        optimizer.zero_grad()
        guesses = model(batch["image"].to(device))
        cross_entropy(guesses, batch["label"].to(device)).backward()
        optimizer.step()

    def refused(self, batch: Mapping[str, torch.Tensor]) -> str:
        """Labels that are no digit, and pixels that are no shade of grey.

        Pixels far too bright would silence most units of a network by honest steps, and the rest of
        the training would be that of a smaller one.
        """
        image, label = batch["image"], batch["label"]
        if not bool(((label >= 0) & (label < 10)).all()):
            return "a label that is no digit"
        return "" if bool(((image >= 0) & (image <= 1)).all()) else "a pixel outside of 0 to 1"

    def train_epoch(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int = 64
    ) -> None:
        """One pass over the training images in random order."""
        images, labels = self.train_data
        for batch in torch.randperm(len(labels)).split(batch_size):
            self.train_step(model, optimizer, {"image": images[batch], "label": labels[batch]})
