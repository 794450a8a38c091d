"""What every loader hands over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError
from polo_lab.data import files
from polo_lab.data.digests import digest_of


class Part(NamedTuple):
    """Samples and what they are.

    Attributes:
        inputs: Images as bytes, samples × channels × height × width; or codes of tokens, samples ×
            places.
        labels: Classes; or what follows each token, samples × places.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    def first(self, count: int) -> "Part":
        """So many samples."""
        return Part(self.inputs[:count], self.labels[:count])


@dataclass(frozen=True)
class Dataset:
    """A data set; a part of it is read when it is asked for, and kept.

    Attributes:
        name: The name that `load` knows it by.
        title: What it really is; tables call it so, a subset is called one.
        classes: Number of classes; for a language model of tokens.
        read: Reads the part `train` or `test`.
    """

    name: str
    title: str
    classes: int
    read: Callable[[str], Part]

    @cached_property
    def train(self) -> Part:
        """To train on."""
        return self.read("train")

    @cached_property
    def test(self) -> Part:
        """What training never sees."""
        return self.read("test")

    def held(self, part: str) -> Part | None:
        """A part, if it has been read already."""
        return vars(self).get(part)

    @property
    def images(self) -> bool:
        """Whether samples are images; else they are tokens."""
        return self.test.inputs.dtype == np.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.test.inputs.shape[1:]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all arrays, in hexadecimal; however files are packed, it is the same."""
        return digest_of(*self.train, *self.test)

    def small(self, train: int, test: int) -> "Dataset":
        """The first samples, called a part of what they are."""
        counts = {"train": train, "test": test}
        title = f"{self.title}, the first {train:,} / {test:,} samples"
        whole = {"train": lambda: self.train, "test": lambda: self.test}
        return Dataset(
            self.name, title, self.classes, lambda part: whole[part]().first(counts[part])
        )


def titled(title: str, there: Mapping[str, int], whole: Mapping[str, int], unit: str = "") -> str:
    """What to call data of which perhaps not all is there.

    Args:
        title: What they are called if they are complete.
        there: How much of each part is there.
        whole: How much of it there is in the original.
        unit: What is counted, if it is not samples.

    Raises:
        FormatError: There is more than in the original.

    >>> titled("CIFAR-100", {"train": 1, "test": 100}, {"train": 50_000, "test": 100})
    'CIFAR-100, 1 of 50,000 of train'
    """
    said = [title]
    for part, count in there.items():
        counted = f"{whole[part]:,} {unit}".rstrip()
        if count > whole[part]:
            raise FormatError(
                f"this is not {title}: {part} has {count:,}, not {counted}",
                place=str(files.folder()),
            )
        if count < whole[part]:
            said.append(f"{count:,} of {counted} of {part}")
    return ", ".join(said)
