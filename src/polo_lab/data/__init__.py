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


def _digits(name: str, title: str, channels: int, side: int) -> Callable[[], Dataset]:
    return partial(digits.enlarged, name, title, channels, side)


_SOURCES = {
    "agnews": Source(agnews.load, agnews.stand_in, (agnews.LENGTH,), len(agnews.CLASSES)),
    "cifar10": Source(
        cifar.cifar10,
        _digits("cifar10", "CIFAR-10", 3, 32),
        (3, 32, 32),
        10,
        ((125.31, 122.95, 113.87), (62.99, 62.09, 66.70)),
    ),
    "cifar100": Source(
        cifar.cifar100,
        _digits("cifar100", "CIFAR-100", 3, 32),
        (3, 32, 32),
        100,
        ((129.30, 124.07, 112.43), (68.17, 65.39, 70.42)),
    ),
    "digits": Source(digits.load, digits.load, (1, 8, 8), 10, ((4.88,), (6.02,))),
    "fashion-mnist": Source(
        idx.fashion_mnist,
        _digits("fashion-mnist", "Fashion-MNIST", 1, 28),
        (1, 28, 28),
        10,
        ((72.94,), (90.02,)),
    ),
    "mnist": Source(
        idx.mnist, _digits("mnist", "MNIST", 1, 28), (1, 28, 28), 10, ((33.32,), (78.57,))
    ),
    "tinyimagenet": Source(
        tinyimagenet.whole,
        _digits("tinyimagenet", "TinyImageNet", 3, 64),
        (3, 64, 64),
        200,
        ((122.40, 114.27, 101.42), (70.52, 68.62, 71.88)),
    ),
    "tinyimagenet100": Source(
        tinyimagenet.reduced,
        _digits("tinyimagenet100", "TinyImageNet-100/32", 3, 32),
        (3, 32, 32),
        100,
        ((120.99, 113.81, 99.91), (64.96, 62.53, 65.50)),
    ),
    "wikitext2": Source(
        text.wikitext2,
        text.stand_in,
        (text.LENGTH,),
        text.VOCABULARY,
        label_shape=(text.LENGTH,),
    ),
}


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
