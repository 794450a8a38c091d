"""A plan: the recipe of every step, as terms of level replay write it, and how long a shard is."""

from dataclasses import dataclass
from typing import Any

from polo.evidence.replay.recipe import Recipe

_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.0},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "decay": 0.01},
}
OPTIMIZERS = tuple(_OPTIMIZERS)
SCHEDULES = ("constant", "cosine", "steps", "warmup")


@dataclass(frozen=True)
class Plan:
    """How a case trains; the verifier fixes all of it.

    Attributes:
        optimizer: One of `OPTIMIZERS`; `momentum` is SGD with momentum 0.9.
        schedule: One of `SCHEDULES`; `warmup` is a cosine after a warm-up.
        rate: The full learning rate.
        shards: Number of shards.
        passes: Passes over the data that make a shard.
        batch: Samples per step.
        every: Steps per segment of the record.
        draws: Segments that a verifier draws.
        top: Segments of the largest move that it adds.
        seals: Sealings that it draws.
        tolerance: Largest relative deviation, in millionths, where platforms differ.
    """

    optimizer: str
    schedule: str
    rate: float
    shards: int = 6
    passes: int = 1
    batch: int = 64
    every: int = 2
    draws: int = 24
    top: int = 4
    seals: int = 2
    tolerance: int = 0

    def shard_steps(self, samples: int) -> int:
        """Optimizer steps of a shard over so many samples."""
        return self.passes * -(-samples // self.batch)

    def steps(self, samples: int) -> int:
        """Optimizer steps of the whole chain."""
        return self.shards * self.shard_steps(samples)

    def recipe(self, samples: int) -> Recipe:
        """The recipe that terms of level replay write down."""
        total = self.steps(samples)
        return Recipe(
            samples=samples,
            batch=self.batch,
            rate=self.rate,
            every=self.every,
            draws=self.draws,
            top=self.top,
            seals=self.seals,
            tolerance=self.tolerance,
            **_OPTIMIZERS[self.optimizer],
            **_schedule(self.schedule, total),
        )


def _schedule(name: str, total: int) -> dict[str, Any]:
    if name == "constant":
        return {"schedule": "constant"}
    if name == "steps":
        return {"schedule": "steps", "milestones": (total // 2, 3 * total // 4), "gamma": 0.3}
    warmup = max(1, total // 10) if name == "warmup" else 0
    return {"schedule": "cosine", "total": total, "warmup": warmup}
