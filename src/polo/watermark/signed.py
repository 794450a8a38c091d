"""Signed targets (the paper's appendix on LoRA): a bit is the sign of one chosen weight.

A group is cut into as many equal stretches as it has bits, and the key chooses one weight of each.
At a load of 1 a stretch is a single weight.

Specification: docs/protocol.md, section 7.5.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.protocol import derivation
from polo.protocol.layout import Tensor
from polo.watermark.ednn import fixed_point, right
from polo.watermark.interface import Defaults, matrices_only

if TYPE_CHECKING:
    from polo.watermark.mark import Mark

_WORD_BITS = 32


class Signed:
    """See `polo.watermark.schemes.Scheme`."""

    name = "signed"
    together = 1
    defaults = Defaults(load=0.25, strength=0.1, margin=0.01)
    precision = frozenset({"F16", "BF16"})

    def matches(
        self, mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which bits match, by group and bit."""
        units = fixed_point(values).reshape(len(groups), mark.group_weights)
        chosen = np.stack([row[places(mark, g)] for g, row in zip(groups, units, strict=True)])
        return right(mark, chosen, groups)

    def objection(self, tensor: Tensor, *, norm: bool | None) -> str:
        """Why a tensor may not carry; empty if it may."""
        del norm
        return matrices_only(tensor)


def places(mark: "Mark", group: int) -> NDArray[np.intp]:
    """Which weight of a group each of its bits sits in."""
    stretch = mark.group_weights // mark.group_bits
    # One word in four billion is unevenly likely; a place is no secret that this could tell.
    data = derivation.key(mark.seed, group, _WORD_BITS * mark.group_bits)
    offsets = np.frombuffer(data, dtype="<u4").astype(np.intp) % stretch
    return np.arange(mark.group_bits) * stretch + offsets
