"""AG News (Zhang et al. 2015): news in four classes.

Read from the original files `ag_news_csv/train.csv` and `test.csv`, or from a subset of the
training part, `ag_news_train_subset77k.csv`, and the official test part, `ag_news_test.csv`, plain
or packed with xz or gzip. Words are the most frequent of the training part; a text is cut after so
many.
"""

import csv
import functools
import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from polo.errors import FormatError
from polo_lab.data import files
from polo_lab.data.dataset import Dataset, Part, titled
from polo_lab.data.words import Vocabulary, manual, split

LENGTH = 64
"""Words of a text, the beginning included; nine of ten texts are shorter."""

VOCABULARY = 30_000
CLASSES = ("World", "Sports", "Business", "Sci/Tech")

_PIECE = 24
_ORIGINAL = ("ag_news_csv/train.csv", "ag_news_csv/test.csv")
_SUBSET = ("ag_news_train_subset77k.csv", "ag_news_test.csv")
_WHOLE = {"train": 120_000, "test": 7_600}
_DIGESTS = {
    _SUBSET[0]: "6bd4ee07e47466854a09ea1224a32a3aa589f7e49b62a55fd5f000568c2f25cd",
    _SUBSET[1]: "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
}
"""SHA-256 of the files as they are unpacked."""

Rows = tuple[list[list[str]], list[int]]
"""Texts as words, and their classes."""


def load() -> Dataset:
    """AG News, or the subset of its training part that is there."""
    if paths := _found(_ORIGINAL):
        there = {part: sum(1 for _ in _lines(path)) for part, path in paths.items()}
        title = titled("AG News", there, _WHOLE)
    elif paths := _found(_SUBSET):
        title = "77,294-row subset of AG News train"
    else:
        both = (" and ".join(names) for names in (_ORIGINAL, _SUBSET))
        error = files.missing("AG News", ", or ".join(both))
        error.advice += files.absent(_ORIGINAL) + files.absent(_SUBSET)
        raise error
    return _dataset("agnews", title, functools.cache(partial(_rows, paths)))


def stand_in() -> Dataset:
    """Pieces of the longest topics of Python's own help; the class is which one it is from."""
    longest = manual()[: len(CLASSES)]

    def texts(part: str) -> Rows:
        rows: Rows = [], []
        for label, words in enumerate(longest):
            cut = len(words) * 3 // 4
            train, test = _pieces(words[:cut]), _pieces(words[cut:])
            # Some passages of the manual come twice.
            kept = [piece for piece in test if piece not in train] if part == "test" else train
            rows[0].extend(kept)
            rows[1].extend([label] * len(kept))
        return rows

    return _dataset("agnews-help", "pieces of Python's own help, in the place of AG News", texts)


def _pieces(words: list[str]) -> list[list[str]]:
    return [words[at : at + _PIECE] for at in range(0, len(words) - _PIECE, _PIECE // 2)]


def _found(names: tuple[str, str]) -> dict[str, Path]:
    """Files of both parts; nothing if one of them is not there."""
    found = zip(("train", "test"), map(files.find, names), strict=True)
    paths = {part: path for part, path in found if path}
    return paths if len(paths) == len(names) else {}


def _lines(path: Path) -> Iterator[list[str]]:
    """Rows of a file, as they are."""
    content = files.text(path, digest=_DIGESTS.get(files.plain_name(path), ""))
    try:
        yield from csv.reader(io.StringIO(content, newline=""))
    except csv.Error as error:
        raise FormatError(f"has no rows: {error}", place=str(path)) from error


def _rows(paths: Mapping[str, Path], part: str) -> Rows:
    """Texts of a file of class, title and description, or of class, text and where it is from."""
    path, place = paths[part], str(paths[part])
    whole = path.name.startswith(_SUBSET[0])
    texts, labels = [], []
    try:
        for row in _lines(path):
            labels.append(int(row[0]) - 1)
            texts.append(split(row[1] if whole else f"{row[1]} {row[2]}"))
    except (ValueError, IndexError) as error:
        raise FormatError(f"line {len(labels) + 1} is no row: {error}", place=place) from error
    if not labels or min(labels) < 0 or max(labels) >= len(CLASSES):
        raise FormatError(f"has no rows of classes 1 to {len(CLASSES)}", place=place)
    return texts, labels


def _dataset(name: str, title: str, texts: Callable[[str], Rows]) -> Dataset:
    """Texts as codes of the training part's words."""
    vocabulary = functools.cache(lambda: Vocabulary(texts("train")[0], VOCABULARY))

    def read(part: str) -> Part:
        words, labels = texts(part)
        return Part(vocabulary().rows(words, LENGTH), np.array(labels, np.int64))

    return Dataset(name, title, len(CLASSES), read)
