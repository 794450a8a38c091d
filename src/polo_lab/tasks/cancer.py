"""Breast cancer in Wisconsin: 569 real tumours, 30 measures each, malignant or benign."""

from functools import cached_property

import torch
from torch import nn

from polo.tasks.training import Column
from polo_lab.tasks.classification import Classification, Part, every_fourth


class Cancer(Classification):
    """scikit-learn's data set for two hidden layers, about 8,000 weights."""

    name = "lab-cancer"
    bounds = (-15.0, 15.0)
    classes = 2
    floor: tuple[float, ...] = (0.40, 0.50, 0.60, 0.70, 0.75, 0.80)
    columns: tuple[Column, ...] = (Column("input", "F32", (30,)), Column("label", "I64", ()))

    @cached_property
    def train_part(self) -> Part:
        """Measures, scaled, and labels to train on."""
        return every_fourth(*self._data, test=False)

    @cached_property
    def test_part(self) -> Part:
        """Measures and labels that training never sees."""
        return every_fourth(*self._data, test=True)

    @cached_property
    def _data(self) -> Part:
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        measures = torch.tensor(found.data, dtype=torch.float64)
        scaled = (measures - measures.mean(0)) / measures.std(0)
        return scaled.float(), torch.tensor(found.target, dtype=torch.int64)

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        return nn.Sequential(
            nn.Linear(30, 96),
            nn.LayerNorm(96),
            nn.GELU(),
            nn.Linear(96, 48),
            nn.GELU(),
            nn.Linear(48, 2),
        )
