"""Handwritten digits: 1,797 real images of 8 × 8, which scikit-learn brings along."""

import numpy as np

from polo.errors import MissingError
from polo_lab.data.dataset import Dataset, Part

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
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingError(
            "digits need scikit-learn", advice="pip install 'polo-proof[quickstart]'"
        ) from error
    found = load_digits()
    images = np.asarray(found.images).astype(np.uint8)[:, None]
    labels = np.asarray(found.target).astype(np.int64)
    chosen = (np.arange(len(labels)) % _TEST_EVERY == 0) == (part == "test")
    return Part(images[chosen], labels[chosen])
