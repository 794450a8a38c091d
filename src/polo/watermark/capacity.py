"""How many bits fit into a model at which load, before anything is trained."""

from collections.abc import Collection
from dataclasses import dataclass

from polo.errors import TermsError
from polo.protocol.detection import MILLION
from polo.protocol.layout import Layout
from polo.weights import carriers

LOADS = (125_000, 250_000, 500_000)
"""Loads worth looking at, in millionths: the default one, and two that cost more accuracy."""

COMFORTABLE_SHARE = 0.5
"""A mark in more than half of the carrier's blocks overwrites much of the mark before it."""


@dataclass(frozen=True)
class Capacity:
    """What a layout can carry.

    Attributes:
        judged: Every tensor, with the reason where it cannot carry.
        block: Weights per block.
        blocks: Blocks of all tensors that can.
    """

    judged: tuple[carriers.Suitability, ...]
    block: int
    blocks: int

    @property
    def names(self) -> tuple[str, ...]:
        """Tensors that can carry a mark."""
        return tuple(item.tensor.name for item in self.judged if item.carries)

    def bits_at(self, load: int) -> int:
        """Most bits of one mark at a load in millionths."""
        return self.blocks * (self.block * load // MILLION)

    def objection(self, bits: int, load: int) -> str:
        """Why a mark of this size does not fit; empty if it does."""
        per_block = self.block * load // MILLION
        if not self.blocks:
            return "no tensor of this model can carry a mark"
        if not 0 < load <= MILLION or not per_block:
            return f"a load of {load / MILLION:g} leaves a block of {self.block} weights no bit"
        if bits <= 0 or bits % per_block:
            return f"{bits} bits are no multiple of the {per_block} that a block carries"
        if bits > self.bits_at(load):
            return (
                f"{bits} bits do not fit: at a load of {load / MILLION:g} bits per weight "
                f"{self.blocks} blocks of {self.block} weights carry {self.bits_at(load)}"
            )
        return ""

    def advice(self, bits: int, load: int) -> str:
        """What would make a mark of this size fit, or another one."""
        if not self.blocks:
            return "Use a model with larger trained weight matrices, or smaller blocks."
        per_block = self.block * load // MILLION
        if not per_block:
            return f"Use a load of at least {1 / self.block:g} bits per weight."
        if bits <= self.bits_at(load):
            return f"Ask for {max(per_block, bits // per_block * per_block)} bits."
        fitting = [other for other in LOADS if other > load and self.bits_at(other) >= bits]
        if fitting:
            return f"It would fit at a load of {fitting[0] / MILLION:g}."
        return f"Ask for at most {self.bits_at(load)} bits, or carry the mark in more tensors."

    def share(self, bits: int, load: int) -> float:
        """Part of the carrier's blocks that one mark takes."""
        return bits / self.bits_at(load) if self.bits_at(load) else float("inf")


def capacity(layout: Layout, *, block: int, trainable: Collection[str] | None = None) -> Capacity:
    """Judge a layout."""
    if not 16 <= block <= 2048 or block & (block - 1):
        raise TermsError(f"blocks of {block} weights; use a power of two from 16 to 2048")
    judged = tuple(carriers.assess(layout, block=block, trainable=trainable))
    return Capacity(judged, block, sum(j.tensor.elements // block for j in judged if j.carries))
