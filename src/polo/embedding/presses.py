"""The pressing half of every scheme, by the name that terms use."""

from typing import Protocol

import torch

from polo.embedding.ednn import EdnnPress
from polo.errors import TermsError
from polo.protocol.records import Terms
from polo.watermark.mark import Mark


class Press(Protocol):
    """Presses one mark into weights that are given as blocks × weights."""

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights, in closed form."""

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The weights after the finishing step, which keeps to its budget."""


class PressFactory(Protocol):
    """Makes a press for one mark."""

    def __call__(self, mark: Mark, terms: Terms, device: torch.device) -> Press:
        """The press of a mark under some terms, on a device."""


PRESSES: dict[str, PressFactory] = {"ednn": EdnnPress}


def press(mark: Mark, terms: Terms, device: torch.device) -> Press:
    """The press for a mark."""
    if mark.scheme.name not in PRESSES:
        raise TermsError(f"the scheme {mark.scheme.name!r} is unknown to this release")
    return PRESSES[mark.scheme.name](mark, terms, device)
