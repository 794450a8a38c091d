"""Plain training: what everything else is measured against. It proves nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polo_lab.baselines.job import Clock, Job
from polo_lab.baselines.verdict import Verdict

METHOD = "plain"


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        model: The model.
        seconds: Raw seconds: `training`.
        accuracy: The task's metric.
    """

    model: torch.nn.Module
    seconds: dict[str, float]
    accuracy: float


def prove(job: Job) -> Trained:
    """Train; there is nothing else to do."""
    clock = Clock(job.where)
    with job.settled():
        stepper = job.stepper()
        with clock.phase("training"):
            job.train(stepper, 0, job.steps)
        return Trained(stepper.model, clock.seconds, job.evaluate(stepper.model))


def verify(model: torch.nn.Module, job: Job) -> Verdict:
    """Test the model, which is all that can be done: whoever holds it passes."""
    clock = Clock(job.where)
    with clock.phase("testing"):
        accuracy = job.evaluate(model)
    floor = job.lab_task.floor[-1]
    reasons = [] if accuracy >= floor else [f"accuracy {accuracy:.4f}, below {floor}"]
    return Verdict(not reasons, reasons, clock.seconds, {"accuracy": accuracy})


def run(settings: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Train and test under plain settings; see `Job` for them.

    Args:
        settings: Those of a job.
        folder: Not used: nothing is written.
    """
    del folder
    job = Job.of(settings)
    made = prove(job)
    return {
        "method": METHOD,
        "accuracy": made.accuracy,
        "steps": job.steps,
        "compiled": job.how_compiled(),
        "seconds": made.seconds,
        "generation_seconds": 0.0,
        "bytes_stored": 0,
        "verify_all": verify(made.model, job).row(),
    }
