"""FedIPR (Li et al. 2022): marks in the scales of norm layers, pressed by a hinge.

It reads as EDNN does; what is its own is where it sits and how it is pressed. Norm scales are few,
so blocks are small and the load is high; a model may well have too few of them.

Specification: docs/protocol.md, section 7.5.
"""

from polo.protocol.layout import Tensor
from polo.watermark.ednn import Ednn
from polo.watermark.interface import Defaults


class Fedipr(Ednn):
    """See `polo.watermark.schemes.Scheme`."""

    name = "fedipr"
    defaults = Defaults(bits=128, block=64, load=0.25, strength=0.03, budget=0.7, margin=0.10)

    def objection(self, tensor: Tensor, *, norm: bool | None) -> str:
        """Why a tensor may not carry; empty if it may."""
        named = tensor.name.rpartition(".")[2] == "weight"
        scale = named if norm is None else norm
        if scale and len(tensor.shape) == 1:
            return ""
        return "it is not the scale of a norm layer, where fedipr puts its marks"
