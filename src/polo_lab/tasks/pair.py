"""A data set and a model: what most of the laboratory's figures are measured on.

    MINE = Pair("my-task", source, lambda: MyNet(classes=7), Course(epochs=30, rate=0.1))

is a task like those of `polo_lab.tasks.pairs`; registered in group `polo.tasks`, or given as
`module:MINE`, everything here and in `polo` runs on it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn

from polo.tasks.training import Column
from polo_lab import training
from polo_lab.data import Dataset, Source
from polo_lab.tasks.classification import Classification, Part
from polo_lab.training import Course, Feed, Scale
from polo_lab.training.loop import loss_of
from polo_lab.training.varying import varied


class Pair(Classification):
    """A data set and a model.

    Models take images scaled, with channels last; layers run in bfloat16 where there is a GPU.

    Args:
        name: The name that terms use.
        source: The data.
        build: Builds the model, untrained.
        course: How it is usually trained; augmentation, smoothing and precision hold for
            `train_step`, too.
        floor: The least accuracy of shard 1, 2, …; the last number holds from there on.
        data: The data set itself, where it is another than the source's.
    """

    held_out = 1000

    def __init__(
        self,
        name: str,
        source: Source,
        build: Callable[[], nn.Module],
        course: Course,
        floor: tuple[float, ...] = (0.0,),
        *,
        data: Dataset | None = None,
    ) -> None:
        self.name, self.source, self.course, self.floor = name, source, course, floor
        self.classes = source.classes
        self._build = build
        self._data = data
        self._feeds: dict[torch.device, Feed] = {}
        self.columns = (
            Column("input", "U8" if source.images else "I64", source.shape),
            Column("label", "I64", source.label_shape),
        )

    @cached_property
    def data(self) -> Dataset:
        """The data set; raises MissingError if it is not here."""
        return self._data or self.source.read()

    @property
    def train_part(self) -> Part:
        """Inputs and labels to train on."""
        inputs, labels = self.data.train
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    @property
    def test_part(self) -> Part:
        """Inputs and labels that training never sees."""
        inputs, labels = self.data.test
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def on(self, data: Dataset) -> "Pair":
        """The same on other data of the same form, under a name that says so."""
        name = f"{self.name}-on-{data.name}"
        return Pair(name, self.source, self._build, self.course, self.floor, data=data)

    def stand_in(self) -> "Pair":
        """The same on the small real data set that stands in for the source's."""
        return self.on(self.source.stand_in())

    def feed(self, seed: int = 0, device: torch.device | str | None = None) -> Feed:
        """The data in batches, for `polo_lab.training.train`."""
        scale = Scale(*self.source.scale) if self.source.scale else None
        return Feed(self.data, device=device, seed=seed, scale=scale)

    def build_model(self) -> nn.Module:
        """The network, untrained, where it is trained."""
        return self._build().to("cuda" if torch.cuda.is_available() else "cpu")

    def loss(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch of inputs as the data set has them.

        In training mode images are varied, and labels are smoothed.
        """
        device = inputs.device
        course = self.course if model.training else replace(self.course, smoothing=0.0)
        if self.source.images:
            inputs = inputs.permute(0, 2, 3, 1)
            if model.training and course.augmentation:
                inputs = varied(inputs, course.augmentation)
        return loss_of(model, course, device)(self._feed(device).made(course, inputs), labels)

    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on all test samples."""
        device = next(model.parameters()).device
        return training.evaluate(model, self._feed(device), self.course)

    def _feed(self, device: torch.device) -> Feed:
        """The feed that tests on a device; the test part stays there."""
        if device not in self._feeds:
            self._feeds[device] = self.feed(device=device)
        return self._feeds[device]
