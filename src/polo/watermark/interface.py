"""What a scheme is, for those built in and for those that other packages offer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polo.protocol.layout import Tensor
from polo.protocol.records import SchemeTerms

if TYPE_CHECKING:
    from polo.watermark.mark import Mark


@dataclass(frozen=True)
class Defaults:
    """What `polo.make_terms` takes for a scheme where the caller gives nothing.

    Attributes:
        bits: Bits of a mark.
        block: Weights per block.
        load: Bits per weight of a block.
        strength: λ of the mark's loss.
        reduction: Whether the bits' losses are summed (`sum`) or averaged (`mean`).
        every: The mark's gradient is added every so many steps, that many times as strong.
        budget: Largest edit of the finishing step, relative to a group's norm.
        margin: How far past zero the finishing step turns a bit, relative to a group's norm.
    """

    bits: int = 256
    block: int = 256
    load: float = 0.125
    strength: float = 0.001
    reduction: str = "sum"
    every: int = 1
    budget: float = 0.40
    margin: float = 0.05


@runtime_checkable
class Scheme(Protocol):
    """Reads marks.

    Attributes:
        name: The name that terms use.
        together: Blocks that form one group where keys are per block; the blocks of a mark must
            be a multiple of it.
        defaults: What `polo.make_terms` takes where the caller gives nothing.
        precision: Types that a marked checkpoint may be cast to without losing the mark.
    """

    name: str
    together: int
    defaults: Defaults
    precision: frozenset[str]

    def matches(
        self, mark: "Mark", values: NDArray[np.floating[Any]], groups: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which bits match, by group and bit.

        It may be called on another thread than the main one, while a task tests a model. The answer
        must be the same on every machine, and for weights that were made without
        knowledge of the mark a bit may match with probability at most one half. A factor that is
        a power of two changes nothing but rounding: who looks for marks brings groups to one size.

        Args:
            mark: The mark.
            values: Finite weights of these groups, blocks in the mark's order, as blocks × weights
                or as groups × weights.
            groups: Which groups of the mark to read; each can be read alone.
        """

    def objection(self, tensor: Tensor, *, norm: bool | None) -> str:
        """Why a tensor may not carry marks of this scheme; empty if it may.

        Type, training and size are judged by the caller.

        Args:
            tensor: The tensor.
            norm: Whether it is the scale of a norm layer; None where only a layout is known.
        """


@runtime_checkable
class Bounded(Protocol):
    """A scheme whose marks can be too costly to read; a scheme need not be one."""

    def excess(self, terms: SchemeTerms) -> str:
        """Why nobody should have to read a mark of these terms; empty if it is no burden."""


def matrices_only(tensor: Tensor) -> str:
    """The objection of schemes that want weight matrices and kernels."""
    if len(tensor.shape) < 2:
        return "biases and norm scales are few and sensitive; a mark there costs accuracy"
    return ""
