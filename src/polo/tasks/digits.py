"""The digits task: scikit-learn's 1,797 real 8×8 digits, and a small convolutional network."""

from functools import cached_property

import torch
from torch import nn

from polo.errors import MissingError

_TEST_EVERY = 4


class Digits:
    """Recognise handwritten digits; every fourth image is the public test set."""

    name = "digits"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.20, 0.40, 0.60, 0.75, 0.85)

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

    def train_epoch(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int = 64
    ) -> None:
        """One pass over the training images in random order."""
        images, labels = self.train_data
        model.train()
        for batch in torch.randperm(len(labels)).split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
