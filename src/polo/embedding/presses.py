"""The pressing half of every scheme, by the name that terms use.

Other packages offer presses by the entry-point group `polo.presses`: a class or a function with
the interface `PressFactory`, under the name of their scheme.
"""

import functools
from typing import Protocol, runtime_checkable

import torch

from polo.embedding.ednn import EdnnPress
from polo.embedding.ednn_mean import EdnnMeanPress
from polo.embedding.fedipr import FediprPress
from polo.embedding.riga import RigaPress
from polo.embedding.signed import SignedPress
from polo.errors import TermsError
from polo.protocol.carrier import Carrier
from polo.protocol.records import Terms
from polo.watermark.mark import Mark
from polo.watermark.offers import blame, offered, offers

__all__ = ["GROUP", "PRESSES", "Press", "PressFactory", "Watching", "press"]

GROUP = "polo.presses"


class Press(Protocol):
    """Presses one mark into weights that are given as blocks × weights.

    One that has an attribute `graphed` which is true promises that a gradient is always the same
    work on the same memory: on a GPU it is then recorded once and launched as a whole.
    """

    def loss(self, values: torch.Tensor) -> torch.Tensor:
        """λl, the mark's loss at these weights: what `gradient` is the gradient of.

        Differentiable and in the precision of the weights. Training never calls it; tests do.
        """

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """λ∇l of the mark's loss at these weights, in closed form.

        It must not wait for the device, and must come out the same when the same step is replayed.
        """

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The weights after the finishing step, in double precision on the CPU.

        No group moves farther than the budget of the terms, and no right bit becomes wrong.
        """


@runtime_checkable
class Watching(Protocol):
    """A press that also looks at weights that carry no mark; a press need not be one."""

    def reference(self, carrier: Carrier) -> tuple[int, ...]:
        """Blocks of the carrier that it wants to see; none if it does without. Asked once."""

    @property
    def every(self) -> int:
        """It looks before the first of so many presses, and not before the others."""

    def watch(self, values: torch.Tensor, unmarked: torch.Tensor) -> None:
        """Look before a gradient is asked for; must not wait for the device.

        Args:
            values: The mark's weights, as blocks × weights.
            unmarked: The reference's weights, as blocks × weights.
        """


class PressFactory(Protocol):
    """Makes a press for one mark."""

    def __call__(self, mark: Mark, terms: Terms, device: torch.device) -> Press:
        """The press of a mark under some terms, on a device."""


PRESSES: dict[str, PressFactory] = {
    "ednn": EdnnPress,
    "ednn-mean": EdnnMeanPress,
    "fedipr": FediprPress,
    "fedipr-kernel": FediprPress,
    "riga": RigaPress,
    "signed": SignedPress,
}
"""Presses of the schemes that are built in."""


def press(mark: Mark, terms: Terms, device: torch.device) -> Press:
    """The press for a mark.

    Raises:
        TermsError: Nothing here can press marks of that scheme.
    """
    name = mark.scheme.name
    return (PRESSES[name] if name in PRESSES else _offered(name))(mark, terms, device)


@functools.lru_cache(maxsize=64)
def _offered(name: str) -> PressFactory:
    found = offered(GROUP, name)
    if found is None:
        known = ", ".join([*PRESSES, *offers(GROUP)])
        raise TermsError(
            f"nothing here can press marks of the scheme {name!r}; here are presses for {known}",
            advice=f"Install the package that offers one (entry-point group {GROUP}).",
        )
    if not callable(found.item):
        raise found.broken("it is no polo.embedding.presses.PressFactory")
    made: PressFactory = found.item

    def guarded(mark: Mark, terms: Terms, device: torch.device) -> Press:
        try:
            return made(mark, terms, device)
        except Exception as error:
            # Whatever another package does wrong, who trains must know whose it is.
            blame(GROUP, name, error)
            raise

    return guarded
