"""Watching a mark settle, and saying what to change when it does not."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from polo.errors import ChainError
from polo.protocol.detection import Reading
from polo.protocol.records import Terms

logger = logging.getLogger("polo.prover")

PATIENCE = 3
_IDLE = "the optimizer that was attached has made no step in {}"
_IDLE_ADVICE = (
    "Is its step() called, and after attach()? If a GradScaler skips every step, the loss is not "
    "finite: look for NaN, or lower the scale it starts with."
)


class EmbeddingWarning(UserWarning):
    """A mark does not settle; the message says what to change."""


@dataclass
class Monitor:
    """Counts epochs without sealing, and warns."""

    terms: Terms
    patience: int = PATIENCE
    _readings: list[Reading] = field(default_factory=list)
    _seen: tuple[int, int] = (0, 0)
    _idle: int = 0
    _unpressed: set[str] | None = None
    _graded: bool = False

    def pressed(self, idle: set[str], *, graded: bool) -> None:
        """Note which carriers the mark could not be added to in a step.

        Args:
            idle: Those carriers.
            graded: Whether anything that the optimizer trains had a gradient.
        """
        self._unpressed = idle if self._unpressed is None else self._unpressed & idle
        self._graded = self._graded or graded

    def graded(self) -> None:
        """Refuse steps that trained nothing: no parameter ever had a gradient in them."""
        if self._unpressed is not None and not self._graded:
            raise ChainError(
                "the optimizer that was attached makes steps, but nothing that it holds has a "
                "gradient",
                advice="Attach the model that the loss is computed with, and its optimizer: "
                "prover.attach(model, optimizer). Was it copied after attach()? Are gradients "
                "cleared between backward() and step()?",
            )

    def epoch(self, steps: int, total: int, trained: Callable[[], bool]) -> None:
        """Tell a trainer whose optimizer makes no steps: nothing is harmed, and nothing proved.

        Args:
            steps: Steps of the current shard, without those that a scaler skipped.
            total: Steps of the whole chain, with them.
            trained: Whether the weights are others than at the beginning of the shard.
        """
        if steps > self._seen[0]:
            self._idle = 0
            return
        self._idle += 1
        if not steps and total == self._seen[1]:
            self.stepless(trained)
        if self._idle > 1:
            raise ChainError(_IDLE.format("two epochs"), advice=_IDLE_ADVICE)
        told = f"{_IDLE.format('this epoch')}. {_IDLE_ADVICE}"
        warnings.warn(told, EmbeddingWarning, stacklevel=4)

    @staticmethod
    def idle() -> None:
        """Refuse a run of epochs without any step: its proof would show nothing."""
        raise ChainError(_IDLE.format("any epoch"), advice=_IDLE_ADVICE)

    @staticmethod
    def stepless(trained: Callable[[], bool]) -> None:
        """Refuse weights that changed in a shard of which no step was seen.

        Args:
            trained: Whether the weights are others than at the beginning of the shard.
        """
        if trained():
            raise ChainError(
                "the weights have changed, but the optimizer that was attached has made no step",
                advice="Attach the optimizer whose step() you call: prover.attach(model, "
                "optimizer). Was it made anew, copied or wrapped after attach()?",
            )

    def checked(self, steps: int, total: int) -> None:
        """Note the steps at the end of an epoch; not if it has to be tried again."""
        self._seen = (steps, total)

    def sealed(self) -> None:
        """Start over with the next shard."""
        self._readings.clear()
        self._unpressed, self._graded = None, False
        self._seen = (0, self._seen[1])

    def waiting(self, shard: int, reading: Reading, why: str = "") -> None:
        """Note an epoch after which the shard could not be sealed.

        Args:
            shard: The shard.
            reading: Its mark.
            why: What it waits for, if not for the mark.
        """
        self._readings.append(reading)
        logger.info("shard %d is not sealed yet: %s", shard, why or f"η = {reading.eta:.3f}")
        # After 3, 6, 12, … checks: with checks every few steps there may be thousands.
        rounds, early = divmod(len(self._readings), self.patience)
        if not early and rounds.bit_count() == 1:
            told = f"shard {shard} has not been sealed for {len(self._readings)} checks: {why}"
            warnings.warn(told if why else self._advice(shard), EmbeddingWarning, stacklevel=5)

    def _advice(self, shard: int) -> str:
        scheme, goal = self.terms.scheme, self.terms.thresholds.embed / 1e6
        history = ", ".join(f"{reading.eta:.3f}" for reading in self._readings[-6:])
        rising = self._readings[-1].matches > self._readings[0].matches
        trend = (
            "it is rising, so more epochs may do"
            if rising
            else "it is not rising, so more epochs will not help"
        )
        begun = (
            f"shard {shard} has not been sealed for {len(self._readings)} checks: η = {history}; "
            f"{goal:.2f} is needed and {trend}. "
        )
        if self._unpressed:
            named = ", ".join(sorted(self._unpressed)[:3])
            return (
                f"{begun}Nothing was pressed into {named}: no gradient comes there, or a sparse "
                "one. Use dense gradients (sparse=False), or ask the issuer for terms with other "
                "carriers."
            )
        return begun + (
            "Ask the issuer for terms with a stronger mark "
            f"(λ above {scheme.strength / 1e6:g}, {scheme.reduction}), fewer bits "
            f"({scheme.bits} now), a larger finishing budget, or more carriers "
            f"({len(self.terms.carrier)} tensors now)."
        )
