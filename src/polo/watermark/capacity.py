"""How many bits fit into a model at which load, before anything is trained."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from polo.errors import CapacityError, TermsError
from polo.protocol.detection import MILLION
from polo.protocol.layout import Layout, Tensor
from polo.watermark import schemes
from polo.watermark.fedipr import Fedipr
from polo.watermark.fedipr_kernel import FediprKernel
from polo.weights import carriers

LOADS = (125_000, 250_000, 500_000)
"""Loads worth looking at, in millionths: the default one, and two that cost more accuracy."""

COMFORTABLE_SHARE = 0.5
"""A mark in more than half of the carrier's blocks overwrites much of the mark before it."""

ROOMIER = {Fedipr.name: FediprKernel.name}
"""What to advise where a scheme that wants rare tensors does not find enough of them."""


@dataclass(frozen=True)
class Capacity:
    """What a layout can carry.

    Attributes:
        judged: Every tensor, with the reason where it cannot carry.
        block: Weights per block.
        blocks: Blocks of all tensors that can.
        scheme: The scheme that it was judged for.
        together: Blocks that the scheme takes together; a mark has a multiple of them.
    """

    judged: tuple[carriers.Suitability, ...]
    block: int
    blocks: int
    scheme: str = "ednn"
    together: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Tensors that can carry a mark."""
        return tuple(item.tensor.name for item in self.judged if item.carries)

    def only(self, names: Collection[str]) -> "Capacity":
        """The same of some tensors alone.

        Raises:
            CapacityError: One of them cannot carry a mark.
        """
        judged = tuple(item for item in self.judged if item.tensor.name in names)
        for item in judged:
            if not item.carries:
                raise CapacityError(
                    f"it cannot carry a mark of the scheme {self.scheme}: {item.reason}",
                    place=item.tensor.name,
                    advice="`polo validate` lists the tensors that can; by default it is all of "
                    "them.",
                )
        blocks = sum(item.tensor.elements // self.block for item in judged)
        return replace(self, judged=judged, blocks=blocks)

    def bits_at(self, load: int) -> int:
        """Most bits of one mark at a load in millionths."""
        return self.blocks // self.together * self.together * (self.block * load // MILLION)

    def objection(self, bits: int, load: int) -> str:
        """Why a mark of this size does not fit; empty if it does."""
        per_block = self.block * load // MILLION
        if not self.blocks:
            return f"no tensor of this model can carry a mark of the scheme {self.scheme}"
        if load > MILLION:
            return f"a load of {load / MILLION:g} is more than one bit per weight"
        if load <= 0 or not per_block:
            return f"a load of {load / MILLION:g} leaves a block of {self.block} weights no bit"
        if bits <= 0 or bits % (per_block * self.together):
            return f"{bits} bits are no multiple of the {self._step(load)}"
        if bits > self.bits_at(load):
            return (
                f"{bits} bits do not fit: at a load of {load / MILLION:g} bits per weight "
                f"{self.blocks} blocks of {self.block} weights carry {self.bits_at(load)}"
            )
        return ""

    def advice(self, bits: int, load: int) -> str:
        """What would make a mark of this size fit, or another one."""
        roomier = ROOMIER.get(self.scheme)
        other = f" Or use the scheme {roomier}, which sits in weight matrices." if roomier else ""
        if not self.blocks:
            what = "scales of norm layers" if roomier else "weight matrices"
            return f"Use a model with larger trained {what}, or smaller blocks.{other}"
        step = self.block * load // MILLION * self.together
        if load > MILLION:
            return "Use a load of at most 1 bit per weight."
        if step <= 0:
            return f"Use a load of at least {1 / self.block:g} bits per weight."
        if bits <= self.bits_at(load):
            return f"Ask for {max(step, bits // step * step)} bits."
        fitting = [more for more in LOADS if more > load and self.bits_at(more) >= bits]
        if fitting:
            return f"It would fit at a load of {fitting[0] / MILLION:g}.{other}"
        if not (most := self.bits_at(load)):
            return f"Not a single bit fits; carry the mark in more tensors.{other}"
        return f"Ask for at most {most} bits, or carry the mark in more tensors.{other}"

    def share(self, bits: int, load: int) -> float:
        """Part of the carrier's blocks that one mark takes."""
        return bits / self.bits_at(load) if self.bits_at(load) else float("inf")

    def _step(self, load: int) -> str:
        per_block = self.block * load // MILLION
        if self.together == 1:
            return f"{per_block} that a block carries"
        return f"{per_block * self.together} that {self.together} blocks carry together"


def capacity(
    layout: Layout,
    *,
    block: int,
    trainable: Collection[str] | None = None,
    scheme: str = "ednn",
    norms: Collection[str] | None = None,
) -> Capacity:
    """Judge a layout.

    Args:
        layout: The layout.
        block: Weights per block.
        trainable: Names of the tensors that are trained; None if not known.
        scheme: The scheme whose marks it is to carry.
        norms: Names of the tensors that are scales of norm layers; None if not known.
    """
    if not 16 <= block <= 2048 or block & (block - 1):
        raise TermsError(
            f"blocks of {block} weights; use a power of two from 16 to 2048",
            place="block",
            advice="256 is usual. Smaller blocks let smaller tensors carry marks.",
        )
    own = schemes.scheme(scheme)

    def objection(tensor: Tensor) -> str:
        norm = None if norms is None else tensor.name in norms
        return schemes.objection(own, tensor, norm=norm)

    judged = tuple(carriers.assess(layout, block=block, objection=objection, trainable=trainable))
    blocks = sum(item.tensor.elements // block for item in judged if item.carries)
    return Capacity(judged, block, blocks, scheme, own.together)
