"""EDNN on a kernel mean (Uchida et al. 2017): four blocks are averaged, then projected.

Uchida averages a layer's kernels before the projection, so that a mark spreads thinly over many
weights. Here each run of four blocks, in the order drawn, is averaged; one key projects the mean.
What is read is the sign, so a sum stands for the mean and stays exact.

Specification: docs/protocol.md, section 7.5.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polo.watermark.ednn import Ednn, fixed_point, matching
from polo.watermark.interface import Defaults

if TYPE_CHECKING:
    from polo.watermark.mark import Mark

AVERAGED = 4
"""Blocks that are averaged."""


class EdnnMean(Ednn):
    """See `polo.watermark.schemes.Scheme`."""

    name = "ednn-mean"
    together = AVERAGED
    defaults = Defaults(load=1 / 32, strength=0.004)

    def matches(
        self, mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which bits match, by group and bit."""
        blocks = fixed_point(values).reshape(len(groups), -1, AVERAGED, mark.scheme.block)
        return matching(mark, blocks.sum(axis=2).reshape(len(groups), -1), groups)
