"""Manipulation: the thief presses a chain of their own into the stolen weights, without training.

The paper's *Weight Manipulation Attack* (WMA, threat model 2), by the finishing step's closed form:
it needs no training data, no time, and hardly any accuracy.
"""

import copy
from pathlib import Path

import torch

from polo.cli.scenes import forge
from polo.enrolment import enrol, make_terms
from polo.keys import Identity
from polo.protocol.signing import Signer
from polo.tasks import Task


def manipulate(
    model: torch.nn.Module,
    task: Task,
    *,
    store: Path,
    issuer: Signer,
    shards: int,
    bits: int = 256,
) -> torch.nn.Module:
    """A copy of the stolen model with a chain of the thief's own pressed into it.

    Args:
        model: The stolen model; it stays as it is.
        task: Its task, for which the thief is enrolled like anybody else.
        store: The folder of the thief's proof.
        issuer: Who enrols the thief.
        shards: How many shards the thief makes up.
        bits: Bits of the thief's marks.
    """
    stolen, thief = copy.deepcopy(model), Identity.generate()
    terms = make_terms(task, bits=bits, fewest_shards=1)
    issued = enrol(terms, identity=thief.public_key, issuer=issuer)
    forge(stolen, issued, thief, store, shards=shards, evaluate=lambda: task.evaluate(stolen))
    return stolen
