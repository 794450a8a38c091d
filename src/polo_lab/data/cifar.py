"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), images of 32 × 32.

CIFAR-10 is read from `cifar-10-batches-bin`, the dataset's binary version (records of one byte for
the class and 3072 for the image), or from `cifar10_train_a.npz`, `cifar10_train_b.npz` and
`cifar10_test.npz`, which hold the same images in lossless strips; either way the arrays' digests
are checked. CIFAR-100 is read from `cifar-100-binary` (two bytes for the classes). The versions
for Python are pickled: reading one could run anything, so they are not read.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError, MissingError
from polo_lab.data import files, pictures
from polo_lab.data.dataset import Dataset, Part, titled

BINARY = "cifar-10-batches-bin"
BINARY_100 = "cifar-100-binary"

_PIXELS = 3 * 32 * 32
_WHOLE = {"train": 50_000, "test": 10_000}
_DIGESTS = {
    "train": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    "test": (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}
"""SHA-256 of images, with channels last, and of labels, as bytes."""

_BATCHES = {
    "train": [f"{BINARY}/data_batch_{at}.bin" for at in range(1, 6)],
    "test": [f"{BINARY}/test_batch.bin"],
}
_PACKED = {"train": ["cifar10_train_a.npz", "cifar10_train_b.npz"], "test": ["cifar10_test.npz"]}
_BINARY_100 = {part: [f"{BINARY_100}/{part}.bin"] for part in ("train", "test")}


def cifar10() -> Dataset:
    """CIFAR-10, complete."""
    for found, read in ((_BATCHES, records), (_PACKED, partial(pictures.strips, side=32))):
        if paths := _found(found):
            return Dataset("cifar10", "CIFAR-10", 10, partial(_checked, paths, read))
    packed = ", ".join(name for names in _PACKED.values() for name in names)
    error = _missing("CIFAR-10", f"{BINARY} or {packed}", "cifar-10-batches-py")
    error.advice += _absent(_BATCHES) + _absent(_PACKED)
    raise error


def cifar100() -> Dataset:
    """CIFAR-100, with its hundred fine classes; of files that are cut, what is there."""
    paths = _found(_BINARY_100)
    if not paths:
        error = _missing("CIFAR-100", BINARY_100, "cifar-100-python")
        error.advice += _absent(_BINARY_100)
        raise error
    there = {part: len(files.read(path)) // (2 + _PIXELS) for part, (path,) in paths.items()}
    return Dataset(
        "cifar100",
        titled("CIFAR-100", there, _WHOLE),
        100,
        lambda part: records(paths[part][0], coarse=1, classes=100),
    )


def some(part: str) -> Part:
    """A part of CIFAR-10; of binary files that are not complete, what is there."""
    paths = [path for path in map(files.find, _BATCHES[part]) if path]
    if not paths or _found(_BATCHES) or _found(_PACKED):
        return cifar10().read(part)
    return joined(map(records, paths))


def records(path: Path, *, coarse: int = 0, classes: int = 10) -> Part:
    """Images and labels of a binary file.

    Args:
        path: The file.
        coarse: Bytes of coarse classes in front of each record; they are left out.
        classes: Number of classes.
    """
    data = np.frombuffer(files.read(path), np.uint8)
    size = coarse + 1 + _PIXELS
    if not len(data) or len(data) % size:
        raise FormatError(f"is no file of records of {size} bytes", place=str(path))
    rows = data.reshape(-1, size)
    labels = rows[:, coarse].astype(np.int64)
    if labels.max() >= classes:
        raise FormatError(f"has a label beyond {classes} classes", place=str(path))
    return Part(rows[:, coarse + 1 :].reshape(-1, 3, 32, 32).copy(), labels)


def joined(parts: Iterable[Part]) -> Part:
    """Parts after each other."""
    inputs, labels = zip(*parts, strict=True)
    return Part(np.concatenate(inputs), np.concatenate(labels))


def _found(names: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    """Files of both parts, plain or packed; nothing if one of them is not there."""
    paths = {part: [files.find(name) for name in wanted] for part, wanted in names.items()}
    whole = {part: [path for path in found if path] for part, found in paths.items()}
    return whole if whole == paths else {}


def _absent(names: Mapping[str, Sequence[str]]) -> str:
    return files.absent([name for part in names.values() for name in part])


def _checked(paths: Mapping[str, Sequence[Path]], read: Callable[[Path], Part], name: str) -> Part:
    """A part of CIFAR-10, which must be CIFAR-10's."""
    part = joined(map(read, paths[name]))
    last = np.ascontiguousarray(part.inputs.transpose(0, 2, 3, 1))
    if (_sha(last), _sha(part.labels.astype(np.uint8))) != _DIGESTS[name]:
        raise FormatError(
            f"these are not CIFAR-10's {name} images: their digest is another",
            place=str(files.folder()),
            advice="Get the files again; a run on other data must not be called by this name.",
        )
    return part


def _sha(values: NDArray[np.uint8]) -> str:
    return hashlib.sha256(values.data).hexdigest()


def _missing(title: str, where: str, pickled: str) -> MissingError:
    error = files.missing(title, where)
    if (files.folder() / pickled).exists():
        error.advice += f" {pickled} is pickled and is not read; get the binary version."
    return error
