"""Handwritten digits: the product's own task, and a fully connected network with dropout."""

from functools import cached_property

from torch import nn

from polo.tasks.digits import Digits
from polo.tasks.training import Column
from polo_lab.tasks.classification import Classification, Part


class DigitsConv(Digits):
    """The product's task with a floor that every optimizer and schedule reaches."""

    name = "lab-digits"
    floor: tuple[float, ...] = (0.00, 0.05, 0.10, 0.20, 0.40, 0.60)


class DigitsMLP(Classification):
    """The same images for three linear layers with dropout, about 21,000 weights."""

    name = "lab-digits-mlp"
    bounds = (0.0, 1.0)
    floor: tuple[float, ...] = (0.00, 0.05, 0.10, 0.20, 0.40, 0.60)
    columns: tuple[Column, ...] = (Column("input", "F32", (1, 8, 8)), Column("label", "I64", ()))

    @cached_property
    def train_part(self) -> Part:
        """Images and labels to train on."""
        return Digits().train_data

    @cached_property
    def test_part(self) -> Part:
        """Images and labels that training never sees."""
        return Digits().test_data

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, 96),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(96, 10),
        )
