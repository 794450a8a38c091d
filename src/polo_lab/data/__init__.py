"""Data sets to measure on, read from the folder that the setting POLO_DATA names.

`load` knows them by name. Nothing is downloaded and nothing is unpickled; digests are checked
wherever the files' are known. What is not there is named, with where to put it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from polo.errors import MissingError, TaskError
from polo_lab.data import agnews, cifar, digits, files, idx, text, tinyimagenet
from polo_lab.data.dataset import Dataset, Part

__all__ = ["Dataset", "Part", "Source", "load", "names", "source"]


@dataclass(frozen=True)
class Source:
    """What is known of a data set before it is read.

    Attributes:
        read: Finds its files; raises MissingError if they are not there.
        stand_in: A small real data set of the same form.
        shape: Shape of one sample.
        classes: Number of classes.
        scale: Mean and deviation of each channel of the training images; empty for text.
        label_shape: Shape of a sample's labels; empty if it has one.
    """

    read: Callable[[], Dataset]
    stand_in: Callable[[], Dataset]
    shape: tuple[int, ...]
    classes: int
    scale: tuple[tuple[float, ...], ...] = ()
    label_shape: tuple[int, ...] = ()

    @property
    def images(self) -> bool:
        """Whether samples are images; else they are tokens."""
        return bool(self.scale)


def _pictures(
    name: str,
    title: str,
    read: Callable[[], Dataset],
    shape: tuple[int, int, int],
    classes: int,
    *scale: tuple[float, ...],
) -> tuple[str, Source]:
    """Pictures; digits, enlarged, stand in for them."""
    channels, side, _ = shape
    instead = partial(digits.enlarged, name, title, channels, side)
    return name, Source(read, instead, shape, classes, scale)


_SOURCES = {
    "agnews": Source(agnews.load, agnews.stand_in, (agnews.LENGTH,), len(agnews.CLASSES)),
    "digits": Source(digits.load, digits.load, (1, 8, 8), 10, ((4.88,), (6.02,))),
    "wikitext2": Source(
        text.wikitext2,
        text.stand_in,
        (text.LENGTH,),
        text.VOCABULARY,
        label_shape=(text.LENGTH,),
    ),
} | dict((
    _pictures("cifar10", "CIFAR-10", cifar.cifar10, (3, 32, 32), 10,
              (125.31, 122.95, 113.87), (62.99, 62.09, 66.70)),
    _pictures("cifar100", "CIFAR-100", cifar.cifar100, (3, 32, 32), 100,
              (129.30, 124.07, 112.43), (68.17, 65.39, 70.42)),
    _pictures("fashion-mnist", "Fashion-MNIST", idx.fashion_mnist, (1, 28, 28), 10,
              (72.94,), (90.02,)),
    _pictures("mnist", "MNIST", idx.mnist, (1, 28, 28), 10, (33.32,), (78.57,)),
    _pictures("tinyimagenet", "TinyImageNet", tinyimagenet.whole, (3, 64, 64), 200,
              (122.40, 114.27, 101.42), (70.52, 68.62, 71.88)),
    _pictures("tinyimagenet100", "TinyImageNet-100/32", tinyimagenet.reduced, (3, 32, 32), 100,
              (120.99, 113.81, 99.91), (64.96, 62.53, 65.50)),
))  # fmt: skip


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(_SOURCES)


def source(name: str) -> Source:
    """What is known of a data set by its name."""
    found = _known(name)
    return replace(found, read=partial(load, name), stand_in=partial(_instead, name))


def load(name: str, *, fallback: bool = False) -> Dataset:
    """A data set by name; read once in a process.

    Args:
        name: One of `names`.
        fallback: If its files are not here, take a small real data set of the same form instead,
            whose name and title say so.

    Raises:
        MissingError: Its files are not here.
    """
    _known(name)
    try:
        return _read(name, str(files.folder()))
    except MissingError:
        if not fallback:
            raise
        return _instead(name)


def _known(name: str) -> Source:
    if name not in _SOURCES:
        raise TaskError(f"no data set is called {name!r}; there are {', '.join(names())}")
    return _SOURCES[name]


@functools.cache
def _read(name: str, folder: str) -> Dataset:
    del folder  # what is kept was read from there
    return _SOURCES[name].read()


@functools.cache
def _instead(name: str) -> Dataset:
    return _SOURCES[name].stand_in()
