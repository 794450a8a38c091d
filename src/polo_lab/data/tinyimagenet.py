"""TinyImageNet: 200 classes of ImageNet, images of 64 × 64.

Read from the original folder `tiny-imagenet-200`, or from `tinyimagenet_train_p0.npz`, `…_p1.npz`
and so on, as many as there are (each holds a hundred images of every class), and
`tinyimagenet_val.npz`, which is the test part. `tinyimagenet100` is its first hundred classes
reduced to 32 × 32; it stands in for CIFAR-100 and is never called so.
"""

import filecmp
import functools
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError
from polo_lab.data import files, pictures
from polo_lab.data.cifar import joined
from polo_lab.data.dataset import Dataset, Part, titled

ORIGINAL = "tiny-imagenet-200"

_CLASSES = 200
_OF_A_CLASS = {"train": 500, "test": 50}
_LISTS = {
    "classes": f"{ORIGINAL}/wnids.txt",
    "test": f"{ORIGINAL}/val/val_annotations.txt",
}
"""Files of the original folder that say what its images are."""

_PARTS = 5
_OF_A_PART = 20_000
_VALIDATION = "tinyimagenet_val.npz"
_DIGESTS = {
    "tinyimagenet_train_p0.npz": "70c4f12b4188ca5d29b48068d432685f3e4a186fa9fb8991fdca7f686305288b",
    "tinyimagenet_train_p1.npz": "5f6536f56c2d15c988f6bd3b8020d02865eb60b3af9d8a2255985ce315db8e72",
    _VALIDATION: "2dacd059c32a000ef57a1f949664c295ad4ed306e500452c1b03d8d4e267682d",
}
"""SHA-256 of packed files. Parts that are not in it are read without one."""


Named = list[tuple[Path, int]]
"""Pictures and their classes."""


def whole() -> Dataset:
    """TinyImageNet, as much of it as there is."""
    return _whole(str(files.folder()))


def reduced() -> Dataset:
    """The first hundred classes, every four pixels made one."""
    large = whole()
    title, read = _form("TinyImageNet-100/32", classes=100)
    return Dataset(
        "tinyimagenet100", title, 100,
        # What the large one has decoded already is not decoded again.
        lambda part: halved(large.held(part) or read(part), classes=100),
    )  # fmt: skip


def halved(part: Part, classes: int) -> Part:
    """The first classes, with half as many pixels each way: each the mean of four."""
    kept = part.labels < classes
    images = part.inputs[kept].astype(np.uint16)
    four = images[..., ::2, ::2] + images[..., ::2, 1::2]
    four += images[..., 1::2, ::2] + images[..., 1::2, 1::2]
    return Part(((four + 2) // 4).astype(np.uint8), part.labels[kept])


@functools.cache
def _whole(folder: str) -> Dataset:
    del folder  # what is kept was read from there
    title, read = _form("TinyImageNet", _CLASSES)
    return Dataset("tinyimagenet", title, _CLASSES, read)


def _form(title: str, classes: int) -> tuple[str, Callable[[str], Part]]:
    """What the first classes of the form that is there are called, and how a part is read."""
    if all(map(files.find, _LISTS.values())):
        there = {part: len(_named(part, classes)) for part in _OF_A_CLASS}
        wanted = {part: count * classes for part, count in _OF_A_CLASS.items()}
        return titled(title, there, wanted), partial(_original, classes)
    train = _packed()
    share = f", {100 * len(train) // _PARTS} % of train" if len(train) < _PARTS else ""
    paths = {"train": train, "test": [files.folder() / _VALIDATION]}
    return title + share, lambda part: joined(_read_packed(path, classes) for path in paths[part])


def _packed() -> list[Path]:
    """Parts of the training part, all of them different."""
    where = files.folder()
    found = [where / f"tinyimagenet_train_p{at}.npz" for at in range(_PARTS)]
    there = [path for path in found if path.is_file()]
    if not there or not (where / _VALIDATION).is_file():
        error = files.missing("TinyImageNet", f"{ORIGINAL} or tinyimagenet_*.npz")
        error.advice += files.absent([*_LISTS.values()])
        error.advice += files.absent([(there or found)[0].name, _VALIDATION])
        raise error
    _refuse_twins(there)
    return there


def _refuse_twins(paths: list[Path]) -> None:
    """A file that is there twice is no second part."""
    for one, other in combinations(paths, 2):
        if filecmp.cmp(one, other, shallow=False):
            raise FormatError(
                f"is the same file as {one.name}, under another name",
                place=str(other),
                advice="Take one of them away; each part has images of its own.",
            )


def _read_packed(path: Path, classes: int) -> Part:
    digest = _DIGESTS.get(path.name, "")
    return pictures.jpegs(path, 64, digest=digest, choose=partial(_chosen, path, classes))


def _chosen(path: Path, classes: int, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which images are of the first classes; the file must hold what its name says."""
    if labels.max(initial=0) >= _CLASSES:
        raise FormatError(f"has a label beyond {_CLASSES} classes", place=str(path))
    if path.name != _VALIDATION and len(labels) != _OF_A_PART:
        raise FormatError(f"has {len(labels):,} images, not {_OF_A_PART:,}", place=str(path))
    return labels < classes


def _original(classes: int, part: str) -> Part:
    """The first classes of the dataset's own folder."""
    named, where = _named(part, classes), files.folder() / ORIGINAL
    if not named:
        raise FormatError(f"has no {part} images of its classes", place=str(where))
    read = (files.read(path) for path, _ in named)
    images: NDArray[np.uint8] = pictures.decoded_jpegs(read, len(named), 64, str(where))
    labels = np.array([label for _, label in named])
    return Part(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)


def _named(part: str, classes: int) -> Named:
    """Images that are there; classes in the order of their names, as in the packed files."""
    number = {name: at for at, name in enumerate(sorted(_list("classes").split()))}
    found = _validation(number) if part == "test" else _train(number)
    return [(path, label) for path, label in found if label < classes]


def _train(number: dict[str, int]) -> Named:
    where = files.folder() / ORIGINAL / "train"
    return [
        (path, at)
        for label, at in number.items()
        for path in sorted((where / label / "images").glob("*.JPEG"))
    ]


def _validation(number: dict[str, int]) -> Named:
    where = files.folder() / ORIGINAL / "val" / "images"
    there = {path.name for path in where.glob("*.JPEG")}
    pairs = [line.split("\t")[:2] for line in _list("test").splitlines() if line]
    if any(len(pair) < 2 or pair[1] not in number for pair in pairs):
        raise FormatError("has no test images of its classes", place=str(where))
    return [(where / name, number[label]) for name, label in pairs if name in there]


def _list(which: str) -> str:
    path = files.find(_LISTS[which])
    assert path is not None
    return files.text(path)
