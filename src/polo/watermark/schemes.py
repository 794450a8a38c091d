"""The reading half of every scheme, by the name that terms use.

A scheme says which bits of a mark match the weights that carry it. The pressing half, which
needs torch, is registered under the same name in `polo.embedding.presses`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polo.errors import TermsError
from polo.watermark import ednn
from polo.watermark.mark import Mark


class Scheme(Protocol):
    """Reads marks."""

    def __call__(
        self, mark: Mark, values: NDArray[np.floating[Any]], groups: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which bits match, by group and bit.

        Args:
            mark: The mark.
            values: Weights of these groups, blocks in the mark's order, as blocks × weights.
            groups: Which groups of the mark to read; each can be read alone.
        """


SCHEMES: dict[str, Scheme] = {"ednn": ednn.matches}


def scheme(name: str) -> Scheme:
    """The scheme that terms call by this name."""
    if name not in SCHEMES:
        raise TermsError(f"the scheme {name!r} is unknown; this release reads {', '.join(SCHEMES)}")
    return SCHEMES[name]
