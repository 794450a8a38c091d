"""One number for many marks: how surprising all readings of a chain are together.

A prover who knows its nonces can try many checkpoints and keep the one whose next mark happens to
fit; that gains a few bits on every mark, and they add up. So an offline mark enters with 2^64
tries granted. A live mark enters as it is: its nonce did not exist before the checkpoint was in
the log. Marks are combined by Fisher's method, and the result is corrected for everything else
that was tried: other chains, other matchings of tensors, other readings, and other selections of
marks, since a claimant who shows some nonces and keeps back others can pick the lucky ones.

Specification: docs/protocol.md, section 9.2.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from polo.protocol.detection import Reading

GRINDING_BITS = 64
"""log2 of the tries that an offline prover is granted for each mark."""

CLAIM_LOG2_P = -64
"""A claim stands if luck reaches it with a chance of at most 2 to this power."""


@dataclass(frozen=True)
class ReadMark:
    """What was read of one mark in a model.

    Attributes:
        shard: The shard that the mark belongs to.
        reading: Bits that could be read, and how many of them match.
        live: Whether the nonce was issued after the checkpoint before was in the log.
    """

    shard: int
    reading: Reading
    live: bool

    @property
    def log2_p(self) -> float:
        """The reading's chance by luck, with the tries that an offline prover is granted."""
        granted = 0 if self.live else GRINDING_BITS
        return min(0.0, self.reading.log2_p + granted)


def combine(marks: Iterable[ReadMark]) -> float:
    """log2 of the chance that luck does this well on all marks together.

    >>> combine([])
    0.0
    >>> round(combine([ReadMark(1, Reading(256, 256), True)]), 6)
    -256.0
    """
    found = [mark.log2_p for mark in marks if mark.reading.bits]
    return log2_fisher(-math.fsum(found) * math.log(2), len(found))


def log2_fisher(total: float, count: int) -> float:
    """log2 of the chance that −Σ ln p of `count` independent p-values reaches `total`.

    The sum is Gamma(count, 1), whose tail is e^−t Σ_{j<count} t^j / j!.
    """
    if total <= 0 or not count:
        return 0.0
    logs = [j * math.log(total) - math.lgamma(j + 1) for j in range(count)]
    most = max(logs)
    tail = most + math.log(math.fsum(math.exp(term - most) for term in logs)) - total
    return min(0.0, tail / math.log(2))


def log2_selections(shown: int, marks: int) -> float:
    """log2 of the tries that showing some of a chain's marks amounts to; all of them is one try.

    Sizes count as one try each and a half, so that all selections together are granted no more
    than half of what showing everything is.

    >>> log2_selections(8, 8)
    0.0
    >>> round(log2_selections(2, 8), 3)
    8.807
    """
    if shown == marks:
        return 0.0
    ways = math.lgamma(marks + 1) - math.lgamma(shown + 1) - math.lgamma(marks - shown + 1)
    return 1 + math.log2(marks) + ways / math.log(2)


def correct(log2_p: float, log2_tries: float) -> float:
    """log2 p after so many tries (as a power of two), by Bonferroni's bound."""
    return min(0.0, log2_p + max(0.0, log2_tries))
