"""How surprising a reading is: the upper tail of Binomial(n, ½).

For weights made without knowledge of the mark every bit matches with probability one half,
whatever the extractor, so the number of matches is exactly Binomial(n, ½).

Specification: docs/protocol.md, section 9.
"""

import math
from dataclasses import dataclass

MILLION = 1_000_000
_DOUBT = 1e-6


def log2_tail(bits: int, matches: int) -> float:
    """log2 of the probability of at least `matches` of `bits` fair coin flips.

    >>> round(log2_tail(256, 256), 6)
    -256.0
    >>> log2_tail(256, 0)
    0.0
    """
    if not 0 <= matches <= bits:
        raise ValueError(f"{matches} matches of {bits} bits")
    if matches == 0:
        return 0.0
    if 2 * matches <= bits:
        # The tail is above one half: subtract the mirrored lower tail, which is small.
        return math.log2(-math.expm1(log2_tail(bits, bits - matches + 1) * math.log(2)))
    choose = math.lgamma(bits + 1) - math.lgamma(matches + 1) - math.lgamma(bits - matches + 1)
    first = choose / math.log(2) - bits
    total = ratio = 1.0
    for k in range(matches, bits):
        ratio *= (bits - k) / (k + 1)
        total += ratio
        if ratio < total * 2.0**-60:
            break
    return min(0.0, first + math.log2(total))


@dataclass(frozen=True)
class Reading:
    """What was read of one mark.

    Attributes:
        bits: Length of the mark.
        matches: Bits that read as derived. A bit whose sum is exactly zero is no match.
    """

    bits: int
    matches: int

    @property
    def eta(self) -> float:
        """The paper's detection rate: matches over bits; 0 where no bit could be read."""
        return self.matches / self.bits if self.bits else 0.0

    @property
    def log2_p(self) -> float:
        """log2 of the chance that unmarked weights match this well or better."""
        return log2_tail(self.bits, self.matches)

    def reaches(self, eta: int) -> bool:
        """Whether the detection rate is at least `eta` millionths, in integers; no bits never."""
        return self.bits > 0 and self.matches * MILLION >= eta * self.bits

    def passes(self, eta: int, log2_p: int) -> bool:
        """Whether both rules hold: the rate, and the chance of it by luck."""
        return self.reaches(eta) and self.rarer_than(log2_p)

    def rarer_than(self, log2_p: int) -> bool:
        """Whether luck reaches this reading with a chance of at most 2^log2_p, decided exactly."""
        if log2_p == 0:
            return True
        found = self.log2_p
        if abs(found - log2_p) > _DOUBT:
            return found < log2_p
        if 2 * self.matches == self.bits + 1:
            return log2_p >= -1  # Exactly half of all cases.
        # So close that rounding could decide: count the cases in integers, as far as it takes.
        limit = 1 << (self.bits + log2_p)
        cases = case = math.comb(self.bits, self.matches)
        for k in range(self.matches, self.bits):
            if cases > limit:
                return False
            if (
                2 * k >= self.bits
                and cases + case * (self.bits - k) // (2 * k + 1 - self.bits) < limit
            ):
                return True
            case = case * (self.bits - k) // (k + 1)
            cases += case
        return cases <= limit
