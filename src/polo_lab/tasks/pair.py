"""A data set and a model: what most of the laboratory's figures are measured on.

    MINE = Pair("my-task", source, lambda: MyNet(classes=7), Course(epochs=30, rate=0.1))

is a task like those of `polo_lab.tasks.pairs`; registered in group `polo.tasks`, or given as
`module:MINE`, everything here and in `polo` runs on it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache

import torch
from torch import nn

from polo.tasks.training import Column
from polo_lab import training
from polo_lab.data import Dataset, Source
from polo_lab.tasks.classification import Classification, Part
from polo_lab.training import Course, Feed, Scale
from polo_lab.training.loop import loss_of
from polo_lab.training.shared_loss import SharedLoss
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
        self._shared: SharedLoss | None = None
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
        device, course = inputs.device, self.course
        if not model.training:
            course = replace(course, smoothing=0.0, augmentation=None)
        made = self._made(course, inputs)
        if model.training and self._shared:
            return self._shared(model, made, labels)
        return loss_of(model, course, device)(made, labels)

    @contextmanager
    def compiled(self, batch: int, device: str) -> Iterator[SharedLoss | None]:
        """Steps of whole batches are compiled in here, for all models at once, before any of them.

        Those of images alone: what compilers make of looking words up adds gradients in an order
        that is another one every time.

        Args:
            batch: Samples of a batch.
            device: Where models are trained.
        """
        where = torch.device(device)
        shared = _shared_loss(self, self.course, batch, where) if self.source.images else None
        before, self._shared = self._shared, shared
        try:
            yield shared
        finally:
            self._shared = before

    def _made(self, course: Course, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs as models take them, varied if the course says so."""
        if self.source.images:
            inputs = inputs.permute(0, 2, 3, 1)
            if course.augmentation:
                inputs = varied(inputs, course.augmentation)
        return self._feed(inputs.device).made(course, inputs)

    def _tried(self, batch: int, device: torch.device) -> training.Batch:
        """A batch of training, to compile for."""
        inputs, labels = (part[:batch].to(device) for part in self.train_part)
        return self._made(self.course, inputs), labels

    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on all test samples."""
        device = next(model.parameters()).device
        return training.evaluate(model, self._feed(device), self.course)

    def _feed(self, device: torch.device) -> Feed:
        """The feed that tests on a device; the test part stays there."""
        if device not in self._feeds:
            self._feeds[device] = self.feed(device=device)
        return self._feeds[device]


@lru_cache(maxsize=1)
def _shared_loss(pair: Pair, course: Course, batch: int, device: torch.device) -> SharedLoss:
    """The loss of a pair's models; one at a time, since compiling another drops it."""
    return SharedLoss(
        course,
        device,
        lambda: pair.build_model().to(device),
        lambda: pair._tried(batch, device),
    )
