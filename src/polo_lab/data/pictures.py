"""Packed pictures: lossless WebP strips and JPEG files inside .npz. Pillow."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError, MissingError
from polo_lab.data import files
from polo_lab.data.dataset import Part

_MOST_SAMPLES = 2**20

Chooser = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Which images are wanted, by the labels of all of them."""


def strips(path: Path, side: int) -> Part:
    """Colour images in strips, one above the other, with their labels."""
    place = str(path)
    names = ("blob", "length", "per", "count", "hw", "label")
    blob, lengths, per, count, hw, labels = files.arrays(path, *names)
    height, images = (_number(value) for value in (per, count))
    fits = hw.tolist() == [side, side] and 0 < height <= 1000 and labels.shape == (images,)
    if not fits or lengths.ndim != 1:
        raise FormatError(f"is no file of images of {side} × {side}", place=place)
    if len(lengths) != -(-images // height):
        raise FormatError("has another number of strips than its images need", place=place)
    found = np.empty((images, side, side, 3), np.uint8)
    for at, data in enumerate(_pieces(blob, lengths, place)):
        rows = found[at * height : (at + 1) * height]
        size = side, side * len(rows)
        rows[:] = _decoded(data, "WEBP", size, f"{place}, strip {at}").reshape(rows.shape)
    return _part(found, _whole_numbers(labels, place))


def jpegs(path: Path, side: int, *, digest: str = "", choose: Chooser | None = None) -> Part:
    """Colour images that are JPEG files each, their headers stored once, with their labels.

    Args:
        path: The file.
        side: Height and width.
        digest: SHA-256 of the file, if it is known.
        choose: Says which images are wanted; the others are not decoded.
    """
    place = str(path)
    names = ("blob", "length", "header_id", "headers", "header_len", "label")
    blob, lengths, which, headers, header_lengths, labels = files.arrays(
        path, *names, digest=digest
    )
    heads = _pieces(headers, header_lengths, place)
    bodies = _pieces(blob, lengths, place)
    if which.dtype.kind != "u" or not which.shape == labels.shape == (len(bodies),):
        raise FormatError("has arrays of different lengths", place=place)
    if which.max(initial=0) >= len(heads):
        raise FormatError("names a header that it has not", place=place)
    labels = _whole_numbers(labels, place)
    kept = np.flatnonzero(choose(labels)) if choose else np.arange(len(labels))
    parts = (heads[which[at]] + bodies[at] for at in kept)
    return _part(decoded_jpegs(parts, len(kept), side, place), labels[kept])


def decoded_jpegs(parts: Iterable[bytes], count: int, side: int, place: str) -> NDArray[np.uint8]:
    """Colour images out of JPEG files, samples × height × width × channels."""
    found = np.empty((count, side, side, 3), np.uint8)
    for at, data in enumerate(parts):
        found[at] = _decoded(data, "JPEG", (side, side), f"{place}, image {at}")
    return found


def _part(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Part:
    return Part(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)


def _whole_numbers(labels: NDArray[Any], place: str) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iu":
        raise FormatError("labels are no whole numbers", place=place)
    return labels.astype(np.int64)


def _number(value: NDArray[Any]) -> int:
    """A whole number out of an array of one; -1 for what is none."""
    return int(value) if value.size == 1 and value.dtype.kind in "iu" else -1


def _pieces(blob: NDArray[Any], lengths: NDArray[Any], place: str) -> list[bytes]:
    if lengths.ndim != 1 or lengths.dtype.kind != "u" or len(lengths) > _MOST_SAMPLES:
        raise FormatError("has no list of lengths", place=place)
    data, sizes = blob.tobytes(), lengths.tolist()
    if sum(sizes) != len(data):
        raise FormatError("has lengths that do not add up", place=place)
    ends = np.cumsum(sizes).tolist()
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _decoded(data: bytes, kind: str, size: tuple[int, int], place: str) -> NDArray[np.uint8]:
    """A picture of one kind and size; nothing larger is unpacked."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingError(
            "pictures need Pillow", advice="pip install 'polo-proof[lab]'"
        ) from error
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as picture:
            if picture.size != size:
                raise FormatError(f"is a picture of {picture.size}, not {size}", place=place)
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise FormatError(f"is no {kind} picture: {error}", place=place) from error
