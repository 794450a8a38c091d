"""Which tensors may carry a mark, and in plain words why the others may not."""

from collections.abc import Collection
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
    layout: Layout, *, block: int, trainable: Collection[str] | None = None
) -> list[Suitability]:
    """Judge every tensor of a layout.

    Args:
        layout: The layout.
        block: Weights per block.
        trainable: Names of the tensors that the optimizer trains; None if not known (a file).
    """
    return [Suitability(tensor, _reason(tensor, block, trainable)) for tensor in layout.tensors]


def choose(
    layout: Layout, *, block: int, trainable: Collection[str] | None = None
) -> tuple[str, ...]:
    """All tensors that may carry a mark, in the order of the layout."""
    judged = assess(layout, block=block, trainable=trainable)
    return tuple(item.tensor.name for item in judged if item.carries)


def _reason(tensor: Tensor, block: int, trainable: Collection[str] | None) -> str:
    if tensor.dtype not in CARRIER_DTYPES:
        return f"values of type {tensor.dtype} cannot be nudged by a gradient"
    if trainable is not None and tensor.name not in trainable:
        return "it is not trained (a buffer, a frozen parameter, or unknown to the optimizer)"
    if len(tensor.shape) < 2:
        return "biases and norm scales are few and sensitive; a mark there costs accuracy"
    if tensor.elements < block:
        return f"it has {tensor.elements} weights and a block takes {block}"
    return ""
