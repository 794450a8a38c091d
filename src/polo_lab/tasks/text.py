"""English text, letter by letter: what scikit-learn's data sets are described with."""

from functools import cached_property

import torch
from torch import nn

from polo.tasks.training import Column
from polo_lab.data.words import descriptions
from polo_lab.models.gpt import GPT
from polo_lab.tasks.classification import Classification, Part, every_fourth

LENGTH = 32
CODES = 96
"""Printable ASCII, and one code for everything else."""


class Letters(Classification):
    """Guess the next letter at each of 32 places, with a small transformer."""

    name = "lab-letters"
    classes = CODES
    floor: tuple[float, ...] = (0.05, 0.05, 0.10, 0.10, 0.12, 0.12)
    columns: tuple[Column, ...] = (
        Column("input", "I64", (LENGTH,)),
        Column("label", "I64", (LENGTH,)),
    )

    @cached_property
    def train_part(self) -> Part:
        """Letters and those that follow them, to train on."""
        return every_fourth(*self._data, test=False)

    @cached_property
    def test_part(self) -> Part:
        """The same of windows that training never sees."""
        return every_fourth(*self._data, test=True)

    @cached_property
    def _data(self) -> Part:
        text = "\n".join(descriptions().values())
        codes = torch.tensor([_code(letter) for letter in " ".join(text.split())])
        # Rulers of tables come again and again; each window counts once.
        windows = codes.unfold(0, LENGTH + 1, LENGTH)
        distinct = torch.stack(list({tuple(w[:-1].tolist()): w for w in windows}.values()))
        return distinct[:, :-1].contiguous(), distinct[:, 1:].contiguous()

    def build_model(self) -> nn.Module:
        """The network, untrained."""
        return GPT(CODES, LENGTH, width=32, heads=4, depth=1)


def _code(letter: str) -> int:
    return ord(letter) - 32 if " " <= letter <= "~" else CODES - 1
