"""Keeping states for an answer: small ones in memory, large ones in files.

A forger must show every state that no training led to, and a network of eleven million weights with
its optimizer takes a hundred megabytes at each boundary.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from polo_lab.attacks.effort.snapshot import Snapshot

Again = Callable[[], Snapshot]
"""Gives a state again that was kept, or can be made once more."""

LARGE = 2**22
"""Bytes of a state from which on it goes into a file."""


class Keeping:
    """States that a forger keeps.

    Args:
        folder: Where files go; it is made when there is one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: Iterator[int] = itertools.count()

    def keep(self, state: Snapshot) -> Again:
        """Keep a state; returns what gives it again."""
        if state.size < LARGE:
            return lambda: state
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{next(self._numbers)}.pt"
        # Tensors that are one stay one in such a file.
        torch.save((dict(state.model), dict(state.rest)), path)
        return partial(_read, path)


def _read(path: Path) -> Snapshot:
    return Snapshot(*torch.load(path, weights_only=True))
