"""A quick look at a few bits of many chains, to read only the promising ones in full.

A chain's marks each read alike if they are there at all, so some hundred bits tell a marked model
from an unmarked one. The screen's power is computed, not hoped for: `Screen.power` is the chance
that a chain whose marks read at a given rate gets through.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from polo.errors import PoloError
from polo.ownership.claimant import Claimant
from polo.ownership.reading import read_mark
from polo.ownership.sources import WeightSource

MARKS = 6
BITS = 768
ETA = 0.62
"""Per-mark detection rate at which the screen must let a chain through."""

POWER = 0.9999
"""How surely it must, at that rate."""

ALONE = -30
"""log2 p at which one mark alone lets a chain through: the others may have been scrubbed."""


@dataclass(frozen=True)
class Screen:
    """What the quick look asks for.

    Attributes:
        bits: Bits that it reads.
        least: Matches among them that let a chain through.
    """

    bits: int
    least: int

    def power(self, eta: float) -> float:
        """Chance that a chain whose bits match with probability `eta` gets through."""
        return math.fsum(_chance(self.bits, k, eta) for k in range(self.least, self.bits + 1))

    @property
    def false_pass(self) -> float:
        """Chance that an unmarked model gets through."""
        return self.power(0.5)


@functools.lru_cache
def screen_of(bits: int) -> Screen:
    """The strictest screen of so many bits that still has the power it must have."""
    least, power = bits, _chance(bits, bits, ETA)
    while least and power < POWER:
        least -= 1
        power += _chance(bits, least, ETA)
    return Screen(bits, least)


def passes(claimant: Claimant, source: WeightSource) -> tuple[bool, Screen]:
    """Whether a chain is worth reading in full, and what the screen was.

    Marks are taken evenly over the chain, the first groups of each. A chain of which too few bits
    can be read, or whose nonces are not here, gets through.
    """
    bits = matches = 0
    alone = False
    for shard in sampled(claimant.shards):
        try:
            derived = claimant.mark(shard)
        except PoloError:
            continue
        mark = derived.mark
        groups = range(min(mark.groups, max(1, BITS // MARKS // mark.group_bits)))
        reading = read_mark(claimant, derived, source, groups).reading
        bits, matches = bits + reading.bits, matches + reading.matches
        alone |= reading.log2_p <= ALONE
    screen = screen_of(bits)
    return alone or bits < BITS // 4 or matches >= screen.least, screen


def sampled(shards: int) -> Sequence[int]:
    """Shards whose marks are looked at: at most `MARKS`, evenly, the newest among them."""
    count = min(MARKS, shards)
    return sorted({shards - at * shards // count for at in range(count)}) if count else ()


def _chance(bits: int, matches: int, eta: float) -> float:
    """Chance of exactly so many matches, if each bit matches with probability `eta`."""
    ways = math.lgamma(bits + 1) - math.lgamma(matches + 1) - math.lgamma(bits - matches + 1)
    return math.exp(ways + matches * math.log(eta) + (bits - matches) * math.log1p(-eta))
