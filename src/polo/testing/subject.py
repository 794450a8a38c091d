"""What is tested: a scheme under some terms, with marks and weights to try it on."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from polo.embedding.presses import Press, press
from polo.enrolment import make_terms
from polo.protocol.layout import Layout
from polo.protocol.records import Terms
from polo.tasks import digits
from polo.watermark import schemes
from polo.watermark.mark import Mark, carrier_of, derive
from polo.weights.checkpoint import checkpoint_of

Floats = NDArray[np.floating[Any]]


class Digits(digits.Digits):
    """The digits with a network that every kind of carrier is found in, norm scales too."""

    name = "conformance-digits"
    floor: tuple[float, ...] = ()

    def build_model(self) -> nn.Module:
        """Three linear layers with batch norm between them."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 768),
            nn.BatchNorm1d(768),
            nn.ReLU(),
            nn.Linear(768, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )


class Subject:
    """A scheme under the terms that it is tested with.

    Attributes:
        scheme: Its name, as terms use it.
        options: Options of `polo.make_terms` where its defaults do not suit the tests.
    """

    scheme: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}

    def task(self) -> Digits:
        """The task whose model carries the marks; may be overridden."""
        return Digits()

    def terms(self, **options: Any) -> Terms:
        """Terms for the task."""
        return make_terms(self.task(), scheme=self.scheme, **{**self.options, **options})

    def layout(self) -> Layout:
        """Layout of the task's model."""
        return checkpoint_of(self.task().build_model()).layout

    def marks(self, terms: Terms, count: int) -> Iterator[Mark]:
        """Marks of several seeds."""
        carrier = carrier_of(terms, self.layout())
        for number in range(count):
            yield derive(terms, carrier, hashlib.sha256(b"mark %d" % number).digest())

    def mark(self, terms: Terms) -> Mark:
        """One mark."""
        return next(self.marks(terms, 1))

    def press(self, mark: Mark, terms: Terms, device: str = "cpu") -> Press:
        """The press of a mark."""
        return press(mark, terms, torch.device(device))

    def right(self, mark: Mark, values: Floats | torch.Tensor) -> NDArray[np.bool_]:
        """Which bits of a mark match these weights."""
        weights = values.numpy() if isinstance(values, torch.Tensor) else values
        return schemes.scheme(self.scheme).matches(mark, weights, range(mark.groups))


def weights_for(mark: Mark, number: int = 0, kind: str = "normal") -> Floats:
    """Weights that were made without knowledge of a mark, as blocks × weights."""
    draw = np.random.default_rng(number)
    shape = (len(mark.blocks), mark.scheme.block)
    if kind == "normal":
        return draw.normal(size=shape) * 0.05
    if kind == "all positive":
        return draw.exponential(size=shape)
    # Scales of norm layers as training leaves them, and one weight that outweighs all others.
    values = 1 + draw.normal(size=shape) * 0.1
    if kind == "one rules":
        values[:, 3] *= 1000
    return values


def fingerprint(scheme: str, options: Mapping[str, Any]) -> str:
    """A digest of everything that must be the same in every process."""
    subject = Subject()
    subject.scheme = scheme  # type: ignore[misc]
    terms, hasher = subject.terms(**options), hashlib.sha256()
    for number, mark in enumerate(subject.marks(terms, 4)):
        values = weights_for(mark, number)
        gradient = subject.press(mark, terms).gradient(torch.from_numpy(values).float())
        hasher.update(np.array(mark.blocks).astype("<i8").tobytes())
        hasher.update(np.packbits(mark.bits).tobytes())
        hasher.update(np.packbits(subject.right(mark, values)).tobytes())
        hasher.update(gradient.numpy().tobytes())
    return hasher.hexdigest()
