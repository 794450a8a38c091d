"""Overwriting: the thief enrols and runs a chain of their own on the stolen model.

Here at its strongest: with the training data, at the full learning rate, and with a stronger mark
than the owner's. `polo_lab.attacks.ofa` is the paper's *Overhaul Fine-tuning Attack* (OFA, threat
model 2), checkpoint by checkpoint. The thief's proof is a real one, made by the real prover.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from polo.enrolment import enrol, make_terms
from polo.keys import Identity
from polo.protocol.records import Terms
from polo.protocol.signing import Signer
from polo.prover import Proof, Prover
from polo.tasks import Task
from polo_lab.attacks.finetune import TrainEpoch


@dataclass(frozen=True)
class Overwritten:
    """What the thief ends up with.

    Attributes:
        model: The stolen model, with the thief's marks in it.
        proof: The thief's proof.
    """

    model: torch.nn.Module
    proof: Proof


def overwrite(
    model: torch.nn.Module,
    task: Task,
    train_epoch: TrainEpoch,
    *,
    store: Path,
    issuer: Signer,
    epochs: int,
    learning_rate: float,
    bits: int = 256,
    strength: float = 0.01,
    momentum: float = 0.9,
    scheme: str = "ednn",
    load: float | None = None,
) -> Overwritten:
    """Run a chain of the thief's own on a copy of the stolen model, a shard an epoch.

    Args:
        model: The stolen model; it stays as it is.
        task: Its task, for which the thief is enrolled like anybody else.
        train_epoch: Trains it for an epoch on the task's data.
        store: The folder of the thief's proof.
        issuer: Who enrols the thief; an issuer that verifiers trust, for the attack to count.
        epochs: How long.
        learning_rate: The learning rate, by the paper a tenth of the owner's.
        bits: Bits of the thief's marks.
        strength: λ of the thief's marks; ten times the default.
        momentum: The momentum.
        scheme: The scheme of the thief's marks.
        load: Their bits per weight of a block; by default the scheme's own.
    """
    stolen = copy.deepcopy(model)
    terms = make_terms(
        task, scheme=scheme, bits=bits, strength=strength, load=load, fewest_shards=1
    )
    optimizer = torch.optim.SGD(stolen.parameters(), lr=learning_rate, momentum=momentum)
    with proving(stolen, optimizer, task, terms, store=store, issuer=issuer) as prover:
        for _ in range(epochs):
            train_epoch(stolen, optimizer)
            prover.end_epoch()
        return Overwritten(stolen, prover.finish())


@contextmanager
def proving(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Task,
    terms: Terms,
    *,
    store: Path,
    issuer: Signer,
) -> Iterator[Prover]:
    """A thief's prover, enrolled like anybody else and attached; whoever has it finishes the proof.

    Args:
        model: What the thief trains.
        optimizer: With what.
        task: The task.
        terms: The terms that the thief enrols under.
        store: The folder of the thief's proof.
        issuer: Who enrols the thief.
    """
    thief = Identity.generate()
    issued = enrol(terms, identity=thief.public_key, issuer=issuer)
    prover = Prover(issued, key=thief, store=store)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        yield prover
