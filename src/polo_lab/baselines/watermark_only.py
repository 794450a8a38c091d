"""One mark in the final model, and nothing else: ownership without a word about training.

The mark is one of PoLO's own schemes, under terms like PoLO's, pressed throughout the training and
finished at its end. Its seed is the owner's secret; whoever shows it can have the mark read. There
is no chain, no checkpoint and no noise, and nothing says when the mark came to be.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polo.embedding.embedder import Embedder
from polo.embedding.placement import parameters_of
from polo.errors import PoloError
from polo.protocol.digest import tagged, u64
from polo.protocol.records import Terms
from polo.watermark.mark import carrier_of, derive
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import checkpoint_of
from polo.weights.files import FileCheckpoint, write_checkpoint
from polo.weights.loading import load_into
from polo_lab.baselines.job import Clock, Job, room, setting_of
from polo_lab.baselines.verdict import Verdict
from polo_lab.schemes.training import Setting

METHOD = "watermark-only"
MODEL_FILE = "model.safetensors"


@dataclass(frozen=True)
class Marked:
    """A finished training with one mark.

    Attributes:
        path: The folder that holds the model.
        seconds: Raw seconds by phase: `training` with pressing in it, `finishing`, `storing`.
        pressing: Seconds of training that pressing took, on the host.
        accuracy: The task's metric.
        eta: Detection rate after training, before the finishing step.
        stored: Bytes of the model.
    """

    path: Path
    seconds: dict[str, float]
    pressing: float
    accuracy: float
    eta: float
    stored: int

    @property
    def generation(self) -> float:
        """Seconds beyond training."""
        return self.pressing + sum(self.seconds.values()) - self.seconds["training"]


def secret_of(seed: int) -> bytes:
    """An owner's secret, for runs that can be repeated."""
    return tagged("lab/owner", u64(seed))


def prove(job: Job, setting: Setting, secret: bytes, folder: Path) -> Marked:
    """Train with the mark's gradient, and finish the mark.

    Args:
        job: What is trained.
        setting: The scheme and its size.
        secret: The mark's seed.
        folder: The folder, which must not exist yet.
    """
    folder.mkdir(parents=True)
    clock, terms = Clock(job.where), setting.terms(job.lab_task)
    with job.settled():
        stepper = job.stepper()
        carrier = carrier_of(terms, stepper.layout)
        embedder = Embedder(terms, carrier, secret, parameters_of(stepper.model))

        pressing = 0.0

        def pressed(step: int, scale: torch.Tensor | float) -> None:
            nonlocal pressing
            if step % terms.scheme.every == 0:
                began = time.perf_counter()
                embedder.add_gradient(scale)
                pressing += time.perf_counter() - began

        with clock.phase("training"):
            job.train(stepper, 0, job.steps, pressed=pressed)
        with clock.phase("finishing"):
            before = embedder.read()
            if not before.reaches(terms.thresholds.embed):
                embedder.apply(embedder.finish())
        with clock.phase("storing"), (folder / MODEL_FILE).open("wb") as file:
            write_checkpoint(checkpoint_of(stepper.model), file.write)
        accuracy = job.evaluate(stepper.model)
    stored = (folder / MODEL_FILE).stat().st_size
    return Marked(folder, clock.seconds, pressing, accuracy, before.eta, stored)


def verify(path: Path, job: Job, terms: Terms, secret: bytes) -> Verdict:
    """Read the mark that a secret stands for, and test the model.

    Args:
        path: The folder that holds the model.
        job: The task; no training data are needed.
        terms: The terms that marks are made under.
        secret: What the claimant shows.
    """
    clock, reasons = Clock(job.where), []
    try:
        model = job.lab_task.build_model().to(job.where)
        carrier = carrier_of(terms, checkpoint_of(model).layout)
        with (
            clock.phase("reading"),
            FileCheckpoint.canonical(path / MODEL_FILE, carrier.layout) as f,
        ):
            held = f.held()
            mark = derive(terms, carrier, secret)
            found = read(mark, values_of(mark, carrier, held))
        with clock.phase("testing"):
            load_into(model, held)
            accuracy = job.evaluate(model)
    except PoloError as error:
        return Verdict(False, [str(error)], clock.seconds)
    asked, floor = terms.thresholds, job.lab_task.floor[-1]
    if not found.passes(asked.verify, asked.log2_p):
        reasons.append(f"the mark is not there: {found.eta:.3f}, log2 p {found.log2_p:.1f}")
    if accuracy < floor:
        reasons.append(f"accuracy {accuracy:.4f}, below {floor}")
    figures = {
        "eta": found.eta,
        "log2_p": found.log2_p,
        "accuracy": accuracy,
        "data_bytes_shown": 0,
    }
    return Verdict(not reasons, reasons, clock.seconds, figures)


def run(settings: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Train, mark and verify under plain settings.

    Args:
        settings: Those of a job, and `scheme`, `bits`, `load`, `strength`.
        folder: Where to write; by default nothing is left.
    """
    job, setting = Job.of(settings), setting_of(settings)
    secret, terms = secret_of(job.seed), setting.terms(job.lab_task)
    with room(folder) as own:
        made = prove(job, setting, secret, own / METHOD)
        found = verify(made.path, job, terms, secret)
        other = verify(made.path, job, terms, secret_of(job.seed + 1))
    return {
        "method": METHOD,
        "accuracy": made.accuracy,
        "steps": job.steps,
        "compiled": job.how_compiled(),
        "seconds": made.seconds,
        "generation_seconds": made.generation,
        "eta_before_finish": made.eta,
        "bytes_stored": made.stored,
        "verify_all": found.row(),
        "verify_other_secret": other.row(),
    }
