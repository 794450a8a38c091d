"""What a baseline's verifier says, with what it took to say it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """A verifier's answer.

    Attributes:
        accepted: Whether nothing was found wrong.
        reasons: What was found wrong, one sentence each.
        seconds: Raw seconds, by phase.
        figures: What else was measured.
    """

    accepted: bool
    reasons: Sequence[str]
    seconds: Mapping[str, float]
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def row(self) -> dict[str, Any]:
        """All of it, plain."""
        return {
            "accepted": self.accepted,
            "reasons": list(self.reasons),
            "seconds": dict(self.seconds),
            "total_seconds": self.total,
            **self.figures,
        }
