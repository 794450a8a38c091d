"""A quick look at a few bits of many chains, to read only the promising ones in full.

A chain's marks each read alike if they are there at all, so some hundred bits tell a marked model
from an unmarked one. The screen's power is computed, not hoped for: `Screen.power` is the chance
that a chain whose marks read at a given rate gets through.
"""

import functools
import math
import random
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polo.errors import PoloError
from polo.ownership.claimant import Claimant, DerivedMark
from polo.ownership.reading import read_mark
from polo.ownership.sources import WeightSource

MARKS = 6
BITS = 768
EARLY = 4
"""Marks after which most strangers can be told already."""

ETA = 0.62
"""Per-mark detection rate at which the screen must let a chain through."""

POWER = 0.99995
"""How surely it must, at that rate, at either look."""

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
    def surely(self) -> float:
        """How surely a chain at the rate it must let through gets through, both looks together."""
        return 1 - 2 * (1 - self.power(ETA))

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


Sample = Iterable[tuple[DerivedMark, list[int]]]
"""Marks to look at, and which groups of each."""


def sample(
    claimant: Claimant, draw: random.Random | None = None
) -> Iterator[tuple[DerivedMark, list[int]]]:
    """Draw a few groups of a few marks.

    The system's randomness draws, so that nobody can foresee which marks to scrub.
    """
    draw = draw or secrets.SystemRandom()
    for shard in draw.sample(range(1, claimant.shards + 1), min(MARKS, claimant.shards)):
        try:
            derived = claimant.mark(shard)
        except PoloError:
            continue
        mark = derived.mark
        count = min(mark.groups, max(1, BITS // MARKS // mark.group_bits))
        yield derived, draw.sample(range(mark.groups), count)


def passes(
    claimant: Claimant, source: WeightSource, chosen: Sample | None = None
) -> tuple[bool, Screen]:
    """Whether a chain is worth reading in full, and what the screen was.

    A chain of which too few bits can be read, or whose nonces are not here, gets through.
    """
    bits = matches = 0
    chosen = sample(claimant) if chosen is None else chosen
    for at, (derived, groups) in enumerate(chosen, start=1):
        reading = read_mark(claimant, derived, source, groups).reading
        bits, matches = bits + reading.bits, matches + reading.matches
        if reading.log2_p <= ALONE:
            return True, screen_of(bits)
        if at == EARLY and bits >= BITS // 2 and matches < screen_of(bits).least:
            return False, screen_of(bits)
    screen = screen_of(bits)
    return bits < BITS // 4 or matches >= screen.least, screen


def _chance(bits: int, matches: int, eta: float) -> float:
    """Chance of exactly so many matches, if each bit matches with probability `eta`."""
    ways = math.lgamma(bits + 1) - math.lgamma(matches + 1) - math.lgamma(bits - matches + 1)
    return math.exp(ways + matches * math.log(eta) + (bits - matches) * math.log1p(-eta))
