"""PoLO itself on the same trainer: a chain of marks, terms of level chain, nothing replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import polo
from polo.errors import WeightsError
from polo.evidence.replay.stepping import Stepper
from polo.protocol.records import Terms
from polo.prover import Proof
from polo.verifier import Outcome
from polo.verifier.policy import Policy
from polo_lab.baselines.job import Clock, Job, room, setting_of
from polo_lab.baselines.verdict import Verdict
from polo_lab.schemes.training import Setting

METHOD = "polo"


@dataclass(frozen=True)
class Chained:
    """A finished training with a chain of marks.

    Attributes:
        model: The model.
        proof: The proof, with all checkpoints.
        issuer: Who enrolled the owner; verifiers trust it.
        terms: The terms.
        seconds: Raw seconds by phase: `training`, with all of the proof's making in it.
        spent: Seconds of them by the prover's own count, on the host: `embedding`, `sealing`.
        accuracies: The task's metric after every shard.
        accuracy: The metric at the end.
        stored: Bytes of the proof.
    """

    model: torch.nn.Module
    proof: Proof
    issuer: polo.Identity
    terms: Terms
    seconds: dict[str, float]
    spent: dict[str, float]
    accuracies: Sequence[float]
    accuracy: float
    stored: int


def prove(job: Job, setting: Setting, folder: Path) -> Chained:
    """Train with a prover attached; every epoch may end in a shard.

    Args:
        job: What is trained.
        setting: How marks are made.
        folder: The proof folder to write.
    """
    issuer, owner = polo.Identity.generate(), polo.Identity.generate()
    terms, clock = setting.terms(job.lab_task), Clock(job.where)
    issued = polo.enrol(terms, identity=owner.public_key, issuer=issuer)
    with job.settled():
        stepper = job.stepper()
        model = stepper.model
        with clock.phase("training"):
            prover = polo.Prover(issued, key=owner, store=folder)
            with prover.attach(model, stepper.optimizer, evaluate=lambda: job.evaluate(model)):
                _train(job, stepper, prover)
            proof = prover.finish()
        accuracy = job.evaluate(model)
    spent = {"embedding": prover.timings.embedding, "sealing": prover.timings.sealing}
    metric = terms.task.metric
    accuracies = [shard.metrics[metric] / 1_000_000 for shard in proof.manifest.shards]
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Chained(model, proof, issuer, terms, clock.seconds, spent, accuracies, accuracy, stored)


def _train(job: Job, stepper: Stepper, prover: polo.Prover) -> None:
    """All epochs, each of which may end in a shard."""
    for first in range(0, job.steps, job.pass_steps):
        job.train(stepper, first, first + job.pass_steps)
        try:
            prover.end_epoch()
        except WeightsError:
            # Provers refuse weights that are no numbers; for whoever measures that is a result.
            job.check_finite(stepper.model)
            raise


def verify(made: Chained, job: Job, accuracy: str) -> Verdict:
    """Verify a proof as anybody does.

    Args:
        made: What was proved.
        job: The task.
        accuracy: Which shards are tested: `all`, `sample` or `none`.
    """
    clock = Clock(job.where)
    with clock.phase("verifying"):
        found = polo.verify(
            made.proof.path,
            trust=made.issuer.public_key,
            task=job.lab_task,
            policy=Policy(accuracy=accuracy),
        )
    accepted = found.outcome is Outcome.ACCEPTED
    reasons = [] if accepted else [found.headline()]
    return Verdict(accepted, reasons, clock.seconds, {"data_bytes_shown": 0})


def run(settings: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Prove and verify under plain settings.

    Args:
        settings: Those of a job, and `scheme`, `bits`, `load`, `strength`.
        folder: Where to write; by default nothing is left.
    """
    job, setting = Job.of(settings), setting_of(settings)
    with room(folder) as own:
        made = prove(job, setting, own / METHOD)
        found = {how: verify(made, job, how).row() for how in ("none", "sample", "all")}
    shards = made.proof.manifest.shards
    return {
        "method": METHOD,
        "accuracy": made.accuracy,
        "steps": job.steps,
        "compiled": job.how_compiled(),
        "shards": len(shards),
        "seconds": made.seconds,
        "spent": made.spent,
        "generation_seconds": sum(made.spent.values()),
        "eta": [shard.matches / made.terms.scheme.bits for shard in shards],
        "bytes_stored": made.stored,
        "verify_marks": found["none"],
        "verify_sampled": found["sample"],
        "verify_all": found["all"],
    }
