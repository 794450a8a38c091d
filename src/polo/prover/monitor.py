"""Watching a mark settle, and saying what to change when it does not."""

import logging
import warnings
from dataclasses import dataclass, field

from polo.protocol.detection import Reading
from polo.protocol.records import Terms

logger = logging.getLogger("polo.prover")

PATIENCE = 3


class EmbeddingWarning(UserWarning):
    """A mark does not settle; the message says what to change."""


@dataclass
class Monitor:
    """Counts epochs without sealing, and warns."""

    terms: Terms
    patience: int = PATIENCE
    _readings: list[Reading] = field(default_factory=list)

    def sealed(self) -> None:
        """Start over with the next shard."""
        self._readings.clear()

    def waiting(self, shard: int, reading: Reading) -> None:
        """Note an epoch after which the shard could not be sealed."""
        self._readings.append(reading)
        logger.info("shard %d is not sealed yet: η = %.3f", shard, reading.eta)
        # After 3, 6, 12, … checks: with checks every few steps there may be thousands.
        rounds, early = divmod(len(self._readings), self.patience)
        if not early and rounds.bit_count() == 1:
            warnings.warn(self._advice(shard), EmbeddingWarning, stacklevel=4)

    def _advice(self, shard: int) -> str:
        scheme, goal = self.terms.scheme, self.terms.thresholds.embed / 1e6
        history = ", ".join(f"{reading.eta:.3f}" for reading in self._readings[-6:])
        rising = self._readings[-1].matches > self._readings[0].matches
        trend = (
            "it is rising, so more epochs may do"
            if rising
            else "it is not rising, so more epochs will not help"
        )
        return (
            f"shard {shard} has not been sealed for {len(self._readings)} checks: η = {history}; "
            f"{goal:.2f} is needed and {trend}. Ask the issuer for terms with a stronger mark "
            f"(λ above {scheme.strength / 1e6:g}, {scheme.reduction}), fewer bits "
            f"({scheme.bits} now), a larger finishing budget, or more carriers "
            f"({len(self.terms.carrier)} tensors now)."
        )
