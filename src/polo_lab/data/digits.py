"""Handwritten digits: 1,797 real images of 8 × 8.

They are read from `sklearn_digits.npz` where the folder of data sets has it; else scikit-learn
brings them along. Both hold the same images.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import MissingError
from polo_lab.data import files
from polo_lab.data.dataset import Dataset, Part

PACKED = "sklearn_digits.npz"
_DIGEST = "57818b895e02e2df598c07b98eb5912551dda4e766537477094e8c68d1b14d42"

Arrays = tuple[NDArray[Any], NDArray[Any]]
"""All images and their labels."""

_TEST_EVERY = 4
_BRIGHTER = 15
"""Pixels of digits go to 16, those of other images to 255."""


def load() -> Dataset:
    """The digits; every fourth is for testing, as in the product's own task."""
    return Dataset("digits", "digits", 10, _part)


def enlarged(name: str, title: str, channels: int, side: int) -> Dataset:
    """The digits, as large as other images, in their place.

    Args:
        name: The data set that they stand in for.
        title: Its title.
        channels: Its channels, which are all alike.
        side: Height and width.
    """

    def read(part: str) -> Part:
        images, labels = _part(part)
        rows = np.arange(side) * 8 // side
        large = images[:, :, rows][:, :, :, rows] * np.uint8(_BRIGHTER)
        return Part(np.repeat(large, channels, axis=1), labels)

    said = f"digits, enlarged to {side} × {side}, in the place of {title}"
    return Dataset(f"{name}-digits", said, 10, read)


def _part(part: str) -> Part:
    images, labels = _packed() or _brought_along()
    chosen = (np.arange(len(labels)) % _TEST_EVERY == 0) == (part == "test")
    return Part(images[chosen][:, None].astype(np.uint8), labels[chosen].astype(np.int64))


def _packed() -> Arrays | None:
    """What the packed file holds; None if it is not there."""
    path = files.folder() / PACKED
    if not path.is_file():
        return None
    images, labels = files.arrays(path, "images", "label", digest=_DIGEST)
    return images, labels


def _brought_along() -> Arrays:
    """What scikit-learn holds."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingError(
            "digits need scikit-learn",
            advice=f"pip install 'polo-proof[quickstart]', or let POLO_DATA name the folder that "
            f"holds {PACKED}; see docs/laboratory.md.",
        ) from error
    found = load_digits()
    return np.asarray(found.images), np.asarray(found.target)
