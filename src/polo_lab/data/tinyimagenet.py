"""TinyImageNet: 200 classes of ImageNet, images of 64 × 64.

Read from the original folder `tiny-imagenet-200`, or from `tinyimagenet_train_p0.npz`, `…_p1.npz`
and so on, as many as there are (each holds a hundred images of every class), and
`tinyimagenet_val.npz`, which is the test part. `tinyimagenet100` is its first hundred classes
reduced to 32 × 32; it stands in for CIFAR-100 and is never called so.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polo.errors import FormatError
from polo_lab.data import files, pictures
from polo_lab.data.cifar import joined
from polo_lab.data.dataset import Dataset, Part

ORIGINAL = "tiny-imagenet-200"

_PARTS = 5
_VALIDATION = "tinyimagenet_val.npz"
_DIGESTS = {
    "tinyimagenet_train_p0.npz": "70c4f12b4188ca5d29b48068d432685f3e4a186fa9fb8991fdca7f686305288b",
    "tinyimagenet_train_p1.npz": "5f6536f56c2d15c988f6bd3b8020d02865eb60b3af9d8a2255985ce315db8e72",
    _VALIDATION: "2dacd059c32a000ef57a1f949664c295ad4ed306e500452c1b03d8d4e267682d",
}
"""SHA-256 of packed files. Parts that are not in it are read without one."""


def whole() -> Dataset:
    """TinyImageNet, as much of it as there is."""
    if (files.folder() / ORIGINAL / "wnids.txt").is_file():
        return Dataset("tinyimagenet", "TinyImageNet", 200, _original)
    packed = _packed()
    title = f"TinyImageNet, {100 * len(packed) // _PARTS} % of train"
    title = "TinyImageNet" if len(packed) == _PARTS else title
    return Dataset(
        "tinyimagenet", title, 200,
        lambda part: _read_packed(packed if part == "train" else [files.folder() / _VALIDATION]),
    )  # fmt: skip


def reduced() -> Dataset:
    """The first hundred classes, every four pixels made one."""
    large = whole()
    share = large.title.partition(", ")[2]
    title = f"TinyImageNet-100/32, {share}" if share else "TinyImageNet-100/32"
    return Dataset(
        "tinyimagenet100", title, 100, lambda part: halved(large.read(part), classes=100)
    )


def halved(part: Part, classes: int) -> Part:
    """The first classes, with half as many pixels each way: each the mean of four."""
    kept = part.labels < classes
    images = part.inputs[kept].astype(np.uint16)
    four = images[..., ::2, ::2] + images[..., ::2, 1::2]
    four += images[..., 1::2, ::2] + images[..., 1::2, 1::2]
    return Part(((four + 2) // 4).astype(np.uint8), part.labels[kept])


def _packed() -> list[Path]:
    where = files.folder()
    found = [where / f"tinyimagenet_train_p{at}.npz" for at in range(_PARTS)]
    there = [path for path in found if path.is_file()]
    if not there or not (where / _VALIDATION).is_file():
        raise files.missing("TinyImageNet", f"{ORIGINAL} or tinyimagenet_*.npz")
    return there


def _read_packed(paths: list[Path]) -> Part:
    part = joined(pictures.jpegs(path, 64, digest=_DIGESTS.get(path.name, "")) for path in paths)
    if part.labels.max() >= 200:
        raise FormatError("has a label beyond 200 classes", place=str(paths[0]))
    return part


def _original(part: str) -> Part:
    """The dataset's own folder; classes in the order of their names, as in the packed files."""
    where = files.folder() / ORIGINAL
    number = {name: at for at, name in enumerate(sorted(_words(where / "wnids.txt")))}
    if part == "test":
        lines = files.text(where / "val" / "val_annotations.txt").splitlines()
        pairs = [line.split("\t")[:2] for line in lines if line]
        named = [(where / "val" / "images" / name, label) for name, label in pairs]
    else:
        named = [
            (path, label)
            for label in number
            for path in sorted((where / "train" / label / "images").glob("*.JPEG"))
        ]
    if not named or any(label not in number for _, label in named):
        raise FormatError(f"has no {part} images of its classes", place=str(where))
    read = (files.read(path) for path, _ in named)
    images: NDArray[np.uint8] = pictures.decoded_jpegs(read, len(named), 64, str(where))
    labels = np.array([number[label] for _, label in named])
    return Part(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)


def _words(path: Path) -> list[str]:
    return files.text(path).split()
