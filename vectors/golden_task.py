"""The task of the golden proofs: real 8×8 digits, and a model of about 7,000 weights.

It must never change: the golden proofs name it, and their accuracy is measured with it.
"""

from functools import cached_property

import torch
from sklearn.datasets import load_digits
from torch import nn

_TEST_EVERY = 4
_BRIGHTEST = 16


class GoldenDigits:
    """Recognise handwritten digits; every fourth image is the public test set."""

    name = "golden-digits"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.30, 0.50, 0.60)

    @cached_property
    def _data(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = load_digits()
        images = torch.tensor(found.data, dtype=torch.float32) / _BRIGHTEST
        return images, torch.tensor(found.target, dtype=torch.int64)

    def part(self, *, test: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of one part."""
        images, labels = self._data
        wanted = (torch.arange(len(labels)) % _TEST_EVERY == 0) == test
        return images[wanted], labels[wanted]

    def build_model(self) -> nn.Module:
        """Two linear layers; the first is longer than one leaf, and there are buffers."""
        return nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on the test images."""
        images, labels = self.part(test=True)
        training = model.training
        model.eval()
        guesses = model(images).argmax(1)
        model.train(training)
        return float((guesses == labels).float().mean())

    def train_epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass over the training images in random order."""
        images, labels = self.part(test=False)
        model.train()
        for batch in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
