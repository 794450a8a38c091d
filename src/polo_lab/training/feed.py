"""Batches from data that are on the device already.

What is drawn for an epoch (the order, shifts, mirroring) is drawn at once, on the host, from the
seed and the epoch's number alone: every device sees the same samples in the same order, and any
epoch can be run again by itself. Images are kept as bytes with channels last; one lookup for many
batches picks, shifts and mirrors them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polo_lab.data.dataset import Dataset, Part
from polo_lab.training.course import Augmentation, Course
from polo_lab.training.varying import edged, picked, places

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and labels, on the device."""

_AT_ONCE = 2**24
"""So many numbers of inputs are made at a time, if a batch is not larger."""

_EVALUATED = 2000


@dataclass(frozen=True)
class Scale:
    """What bytes of images become: (byte − mean) / deviation, channel by channel.

    Attributes:
        mean: Means of the channels.
        deviation: How far they spread.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, images: NDArray[Any]) -> "Scale":
        """The scale that gives images a mean of zero and a deviation of one."""
        counts = [
            np.bincount(images[:, at].ravel(), minlength=256) for at in range(images.shape[1])
        ]
        values, total = np.arange(256), counts[0].sum()
        means = [float(count @ values / total) for count in counts]
        squares = [float(count @ values**2 / total) for count in counts]
        spread = [max(s - m * m, 1.0) ** 0.5 for s, m in zip(squares, means, strict=True)]
        return cls(tuple(round(m, 2) for m in means), tuple(round(s, 2) for s in spread))


class Feed:
    """A data set on a device, in batches; what is needed of it is brought there once.

    Args:
        data: The data set.
        device: Where; a GPU if there is one.
        seed: What is drawn is drawn from it.
        scale: What bytes of images become; None leaves them to the model.
    """

    def __init__(
        self,
        data: Dataset,
        *,
        device: torch.device | str | None = None,
        seed: int = 0,
        scale: Scale | None = None,
    ) -> None:
        self.data = data
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.seed = seed
        self.scale = scale
        self._edged: tuple[Augmentation, torch.Tensor] | None = None
        if scale:
            self._mean = _placed(np.array(scale.mean, np.float32), self.device)
            self._factor = _placed(1 / np.array(scale.deviation, np.float32), self.device)

    @classmethod
    def of(
        cls, data: Dataset, *, device: torch.device | str | None = None, seed: int = 0
    ) -> "Feed":
        """A feed of a data set; images are scaled by their own mean and deviation."""
        scale = Scale.of(data.train.inputs) if data.images else None
        return cls(data, device=device, seed=seed, scale=scale)

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self.data.train.labels)

    def steps(self, course: Course) -> int:
        """Steps of an epoch."""
        return max(1, self.samples // course.batch)

    def batches(
        self, course: Course, epoch: int, first: int = 0, last: int | None = None
    ) -> Iterator[Batch]:
        """An epoch's batches.

        Args:
            course: How to make them.
            epoch: The epoch's number, from 0.
            first: The first step.
            last: The step to stop before; by default the epoch's end.
        """
        last = self.steps(course) if last is None else last
        batch = min(course.batch, self.samples)
        chosen = slice(first * batch, last * batch)
        order, *shifts = self._drawn(course.augmentation, epoch, chosen)
        labels = self._train[1].index_select(0, order).split(batch)
        inputs = self._inputs(course, order, shifts, batch)
        yield from zip(inputs, labels, strict=True)

    def test(self, course: Course) -> Iterator[Batch]:
        """The test part, in large batches."""
        for inputs, labels in zip(*(t.split(_EVALUATED) for t in self._test), strict=True):
            yield self.made(course, inputs), labels

    def _drawn(
        self, augmentation: Augmentation | None, epoch: int, chosen: slice
    ) -> Sequence[torch.Tensor]:
        """The order of an epoch's samples and, where they are varied, rows and columns of each."""
        random = np.random.default_rng((self.seed, epoch))
        order = _placed(random.permutation(self.samples)[chosen], self.device)
        if augmentation is None or not self._images:
            return [order]
        shifts = random.integers(0, 2 * augmentation.pad + 1, (2, self.samples, 1))[:, chosen]
        mirrored = random.random((self.samples, 1))[chosen] < 0.5 * augmentation.mirror
        height, width = self.data.shape[1:]
        across = _placed(shifts, self.device), _placed(mirrored, self.device)
        return [order, *places(*across, (height, width), augmentation)]

    def _inputs(
        self,
        course: Course,
        order: torch.Tensor,
        shifts: Sequence[torch.Tensor],
        batch: int,
    ) -> Iterator[torch.Tensor]:
        size = self._train[0][0].numel()
        several = max(1, _AT_ONCE // (size * batch)) * batch
        for parts in zip(*(t.split(several) for t in (order, *shifts)), strict=True):
            if shifts and course.augmentation:
                found = picked(self._with_edges(course.augmentation), *parts)
            else:
                found = self._train[0].index_select(0, parts[0])
            yield from self.made(course, found).split(batch)

    def made(self, course: Course, found: torch.Tensor) -> torch.Tensor:
        """Inputs as the model takes them; images come with channels last."""
        if not self._images:
            return found
        if self.scale:
            found = torch.sub(found, self._mean).mul_(self._factor).to(course.dtype(self.device))
        images = found.permute(0, 3, 1, 2)
        return images if course.channels_last else images.contiguous()

    @property
    def _images(self) -> bool:
        return len(self.data.shape) == 3

    @cached_property
    def _train(self) -> Batch:
        return self._resident(self.data.train)

    @cached_property
    def _test(self) -> Batch:
        return self._resident(self.data.test)

    def _with_edges(self, augmentation: Augmentation) -> torch.Tensor:
        """The training images with edges; those of the last augmentation are kept."""
        if self._edged is None or self._edged[0] != augmentation:
            self._edged = augmentation, edged(self._train[0], augmentation)
        return self._edged[1]

    def _resident(self, part: Part) -> Batch:
        inputs = part.inputs.transpose(0, 2, 3, 1) if self._images else part.inputs
        return _placed(inputs, self.device), _placed(part.labels, self.device)


def _placed(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
