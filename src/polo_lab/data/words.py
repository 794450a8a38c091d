"""Texts as codes of words."""

import importlib.resources
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

PADDING, UNKNOWN, BEGIN = 0, 1, 2
_SPECIAL = 3
_RUN = 12
"""Texts that have so many words in a row in common have copied them."""

_WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


def split(text: str) -> list[str]:
    """Words and marks of a text, in small letters.

    >>> split("Wall St. Bears")
    ['wall', 'st', '.', 'bears']
    """
    return _WORD.findall(text.lower())


class Vocabulary:
    """The words that have a code: the most frequent ones.

    Args:
        texts: Texts as words.
        size: Number of codes, with those for padding, unknown words and the beginning.
    """

    def __init__(self, texts: Iterable[Sequence[str]], size: int) -> None:
        counts: Counter[str] = Counter()
        for words in texts:
            counts.update(words)
        # By count and then by letters, so that it does not depend on what came first.
        ordered = sorted(counts, key=lambda word: (-counts[word], word))[: size - _SPECIAL]
        self._codes = {word: at for at, word in enumerate(ordered, _SPECIAL)}

    def codes(self, words: Sequence[str]) -> list[int]:
        """Words as codes."""
        return [self._codes.get(word, UNKNOWN) for word in words]

    def rows(self, texts: Sequence[Sequence[str]], length: int) -> NDArray[np.int64]:
        """One row a text: a beginning, its first words, padding."""
        found = np.full((len(texts), length), PADDING, np.int64)
        found[:, 0] = BEGIN
        for row, words in zip(found, texts, strict=True):
            codes = self.codes(words[: length - 1])
            row[1 : len(codes) + 1] = codes
        return found


def windows(codes: Sequence[int], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A text in windows, and what follows each word.

    >>> windows([5, 6, 7, 8, 9], 2)[1].tolist()
    [[6, 7], [8, 9]]
    """
    count = (len(codes) - 1) // length
    found = np.asarray(codes, np.int64)
    inputs, labels = found[: count * length], found[1 : count * length + 1]
    return inputs.reshape(count, length), labels.reshape(count, length)


def descriptions() -> dict[str, str]:
    """English texts that every installation has: what scikit-learn's data sets are described with.

    By file name, in order.
    """
    folder = importlib.resources.files("sklearn.datasets.descr")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".rst"))
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def manual() -> list[list[str]]:
    """Python's own help on its language, as words, one list a topic, the longest first.

    Every installation has it. Rulers and numbers, which come again and again, are left out; so are
    topics that are parts of others.
    """
    from pydoc_data.topics import topics

    found: list[list[str]] = []
    seen: set[tuple[str, ...]] = set()
    for text in sorted(topics.values(), key=lambda text: (-len(text), text)):
        words = [word for word in split(text) if word.isalpha()]
        runs = {tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN)}
        if runs and not runs & seen:
            found.append(words)
            seen |= runs
    return found
