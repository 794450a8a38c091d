"""A derived mark as arrays: where it sits, which bits it has, which key reads them.

A mark is laid out in *groups*. With block keys every block, or every few blocks where the scheme
takes several together, is a group: its own weights, its own few bits, its own small key. With a
dense key all blocks together are one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polo.errors import CapacityError, TermsError
from polo.protocol import derivation
from polo.protocol.carrier import Carrier
from polo.protocol.layout import Layout
from polo.protocol.records import SchemeTerms, Terms
from polo.watermark import schemes


@dataclass(frozen=True)
class Mark:
    """One shard's mark.

    Attributes:
        scheme: The scheme's terms.
        blocks: Blocks of the carrier it sits in, in the order drawn.
        seed: What everything is derived from.
    """

    scheme: SchemeTerms
    blocks: tuple[int, ...]
    seed: bytes

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        if self.scheme.key == "dense":
            return 1
        return len(self.blocks) // schemes.scheme(self.scheme.name).together

    @property
    def group_bits(self) -> int:
        """Bits per group."""
        return self.scheme.bits // self.groups

    @property
    def group_weights(self) -> int:
        """Weights per group."""
        return len(self.blocks) * self.scheme.block // self.groups

    @cached_property
    def bits(self) -> NDArray[np.bool_]:
        """Λ, by group and bit."""
        raw = np.frombuffer(derivation.bits(self.seed, self.scheme.bits), dtype=np.uint8)
        flat = np.unpackbits(raw, bitorder="little")[: self.scheme.bits]
        return flat.astype(np.bool_).reshape(self.groups, self.group_bits)

    def signs(self, group: int, columns: int | None = None) -> NDArray[np.int8]:
        """K of one group, ±1, by bit and column; by default a column is a weight."""
        found: NDArray[np.int8] = self.signs_of((group,), columns)[0]
        return found

    def signs_of(self, groups: Sequence[int], columns: int | None = None) -> NDArray[np.int8]:
        """K of several groups, ±1, by group, bit and column."""
        signs: NDArray[np.int8] = self.plus_of(groups, columns).view(np.int8) * 2 - 1
        return signs

    def plus_of(self, groups: Sequence[int], columns: int | None = None) -> NDArray[np.uint8]:
        """The same as 1 for plus and 0 for minus."""
        columns = self.group_weights if columns is None else columns
        count = self.group_bits * columns
        raw = np.frombuffer(derivation.keys(self.seed, groups, count), dtype=np.uint8)
        rows = raw.reshape(len(groups), -1)
        plus = np.unpackbits(rows, axis=1, count=count, bitorder="little")
        return plus.reshape(len(groups), self.group_bits, columns)


def carrier_of(terms: Terms, layout: Layout) -> Carrier:
    """The carrier that the terms name, refused if it cannot hold one mark."""
    check_scheme(terms.scheme)
    carrier = Carrier(layout, terms.carrier, terms.scheme.block)
    if carrier.blocks < terms.scheme.blocks:
        raise CapacityError(
            f"a mark of {terms.scheme.bits} bits takes {terms.scheme.blocks} blocks; the carrier "
            f"has {carrier.blocks}",
            advice="Enrol with fewer bits, a higher load, or more carrier tensors.",
        )
    return carrier


def check_scheme(terms: SchemeTerms) -> None:
    """Refuse a mark whose blocks make no whole groups, or that is too costly to read."""
    try:
        own = schemes.scheme(terms.name)
    except TermsError:
        # An unknown scheme is no fault of the terms: who wants to read it will be told.
        return
    if terms.blocks % own.together:
        raise TermsError(
            f"a mark of {terms.blocks} blocks; the scheme {terms.name} takes {own.together} "
            "together",
            advice=f"Ask for a multiple of {own.together * terms.bits_per_block} bits.",
        )
    if isinstance(own, schemes.Bounded) and (excess := own.excess(terms)):
        raise TermsError(f"the scheme {terms.name}: {excess}", place="terms.scheme")


def derive(terms: Terms, carrier: Carrier, seed: bytes) -> Mark:
    """The mark that a seed stands for."""
    blocks = derivation.positions(seed, terms.scheme.blocks, carrier.blocks)
    return Mark(terms.scheme, blocks, seed)
