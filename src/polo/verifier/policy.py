"""What a verifier asks for beyond the terms."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

ACCURACY = ("all", "sample", "none")


@dataclass(frozen=True)
class Policy:
    """How to verify.

    Attributes:
        accuracy: Which stored checkpoints to test: `all`, a random `sample` of O(log S) with the
            last one always in it, or `none`.
        tolerance: How far the prover's own metric may be from the measured one.
        threads: Threads for hashing, or processes where there is much to hash; by default one per
            core, at most sixteen, of threads that hash weights four.
        final_only: Whether to look only for the marks in the final model: ownership, nothing else.
        whole: Whether only a whole proof can be accepted, and a disclosure cannot.
        device: Where to run drawn segments again; by default where they were trained, if such a
            device is here.
    """

    accuracy: str = "all"
    tolerance: float = 0.01
    threads: int | None = None
    whole: bool = False
    final_only: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        if self.accuracy not in ACCURACY:
            raise ValueError(f"accuracy is one of {', '.join(ACCURACY)}")

    def shards_to_test(self, stored: Sequence[int]) -> list[int]:
        """Which of the stored shards to test, newest first.

        The draw uses the system's randomness, so that a prover cannot foresee it.
        """
        if self.accuracy == "none" or not stored:
            return []
        newest, *older = sorted(stored, reverse=True)
        if self.accuracy == "sample":
            count = min(len(older), math.ceil(math.log2(len(older) + 1)))
            older = secrets.SystemRandom().sample(older, count)
        return [newest, *sorted(older, reverse=True)]
