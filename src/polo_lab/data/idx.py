"""MNIST and Fashion-MNIST: idx files, as LeCun et al. defined them, plain or packed.

They lie in a folder `mnist` or `fashion-mnist` under their original names.
"""

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError
from polo_lab.data import files
from polo_lab.data.dataset import Dataset, Part

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_DIGESTS = {
    "mnist": {
        "train": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "test": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
    "fashion-mnist": {
        "train": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        "test": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    },
}
"""SHA-256 of the files as they are unpacked."""

_BYTES = 8


def mnist() -> Dataset:
    """MNIST, complete."""
    return _load("mnist", "MNIST")


def fashion_mnist() -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017), complete."""
    return _load("fashion-mnist", "Fashion-MNIST")


def parsed(data: bytes, place: str) -> NDArray[np.uint8]:
    """The array of bytes in an idx file.

    >>> parsed(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "").tolist()
    [7, 9]
    """
    dimensions = data[3] if len(data) > 3 and data[:3] == bytes([0, 0, _BYTES]) else 0
    start = 4 + 4 * dimensions
    if not 0 < dimensions <= 4 or len(data) < start:
        raise FormatError("is no idx file of bytes", place=place)
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    size = 1
    for length in shape:
        size *= length
    if size != len(data) - start:
        raise FormatError("has another length than its head says", place=place)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _load(name: str, title: str) -> Dataset:
    wanted = [f"{name}/{file}" for pair in _FILES.values() for file in pair]
    if not all(map(files.find, wanted)):
        error = files.missing(title, f"the folder {name} with its four idx files")
        error.advice += files.absent(wanted)
        raise error
    return Dataset(name, title, 10, lambda part: _part(name, part))


def _part(name: str, part: str) -> Part:
    images, labels = (
        _read(f"{name}/{file}", digest)
        for file, digest in zip(_FILES[part], _DIGESTS[name][part], strict=True)
    )
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise FormatError("has other labels than images", place=name)
    return Part(images[:, None].copy(), labels.astype(np.int64))


def _read(name: str, digest: str) -> NDArray[np.uint8]:
    path = files.find(name)
    assert path is not None
    return parsed(files.read(path, digest=digest), str(path))
