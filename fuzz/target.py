"""What a fuzz target is."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fuzz import mutation

Mutator = Callable[[bytes, random.Random], bytes]
"""Changes an input so that it stays close to something that can be read."""


@dataclass(frozen=True)
class Target:
    """One promise about hostile bytes.

    Attributes:
        check: Raises if these bytes break the promise; a refusal by a PoloError breaks none.
        seeds: Inputs to begin with, made by the real code.
        mutate: Changes an input where blind changes would not get past the first check. It may
            raise where an input lacks the structure.
        most_bytes: Longest input that is tried.
        most_mib: Most memory that one input may take.
    """

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Mutator = mutation.raw
    most_bytes: int = 16 * 1024
    most_mib: int = 64

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        """Another input made from one; blindly where its structure is gone already."""
        try:
            return self.mutate(data, rng)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return mutation.raw(data, rng)
