"""Zero-knowledge proof of training (Kaizen): figures from elsewhere, none measured here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

METHOD = "pol-zk"


@dataclass(frozen=True)
class Cited:
    """A figure from elsewhere.

    Attributes:
        model: What was trained.
        weights: Its number of weights, as the source rounds it; 0 where it is not told.
        batch: Samples of a step.
        seconds: Least and most seconds to prove one step.
        verification: Seconds to verify; 0 where it is not told.
        memory: GiB that proving takes; 0 where it is not told.
        source: Where the figure is from.
    """

    model: str
    weights: int
    batch: int
    seconds: tuple[float, float]
    verification: float
    memory: float
    source: str


PUBLISHED = "Kaizen, as published"
TWO_CORES = "Kaizen's code on two cores"

# Ten million weights are what PoLO's paper says of it, a round number.
FIGURES = (
    Cited("VGG-11", 10_000_000, 16, (900.0, 900.0), 0.130, 0.0, PUBLISHED),
    Cited("LeNet", 57_508, 1, (52.0, 74.0), 0.0, 1.75, TWO_CORES),
    Cited("LeNet", 57_508, 4, (209.0, 435.0), 0.0, 14.4, TWO_CORES),
)


def run(settings: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """The cited figures, and what the published one comes to over a training.

    Args:
        settings: `steps`, the steps of a training; 1 where it is not given.
        folder: Not used: nothing is run.
    """
    del folder
    steps = int(settings.get("steps", 1))
    return {
        "method": METHOD,
        "cited": True,
        "figures": [{**asdict(one), "seconds": list(one.seconds)} for one in FIGURES],
        "steps": steps,
        "generation_seconds_cited": steps * FIGURES[0].seconds[1],
        "verify_seconds_cited": FIGURES[0].verification,
    }
