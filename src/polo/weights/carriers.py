"""Which tensors may carry a mark, and in plain words why the others may not."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from polo.protocol.layout import CARRIER_DTYPES, Layout, Tensor


@dataclass(frozen=True)
class Suitability:
    """Whether one tensor may carry a mark.

    Attributes:
        tensor: The tensor.
        reason: Why it may not; empty if it may.
    """

    tensor: Tensor
    reason: str

    @property
    def carries(self) -> bool:
        """Whether it may carry a mark."""
        return not self.reason


def assess(
    layout: Layout,
    *,
    block: int,
    objection: Callable[[Tensor], str],
    trainable: Collection[str] | None = None,
) -> list[Suitability]:
    """Judge every tensor of a layout.

    Args:
        layout: The layout.
        block: Weights per block.
        objection: Why a scheme does not want a tensor; empty if it does.
        trainable: Names of the tensors that the optimizer trains; None if not known (a file).
    """
    return [
        Suitability(tensor, _reason(tensor, trainable) or objection(tensor) or _size(tensor, block))
        for tensor in layout.tensors
    ]


def _reason(tensor: Tensor, trainable: Collection[str] | None) -> str:
    if tensor.dtype not in CARRIER_DTYPES:
        return f"values of type {tensor.dtype} cannot be nudged by a gradient"
    if trainable is not None and tensor.name not in trainable:
        return "it is not trained (a buffer, a frozen parameter, or unknown to the optimizer)"
    return ""


def _size(tensor: Tensor, block: int) -> str:
    if tensor.elements < block:
        return f"it has {tensor.elements} weights and a block takes {block}"
    return ""
