"""Manipulation: the thief presses a chain of their own into the stolen weights, without training.

By the finishing step's closed form it needs no training data, no time, and hardly any accuracy.
`polo_lab.attacks.wma` is the paper's *Weight Manipulation Attack* (WMA, threat model 2), checkpoint
by checkpoint.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import torch

from polo.cli.scenes import forge
from polo.enrolment import enrol, make_terms
from polo.keys import Identity
from polo.protocol.records import Terms
from polo.protocol.signing import Signer
from polo.tasks import Task
from polo.watermark.mark import Mark


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
    stolen = copy.deepcopy(model)
    terms = make_terms(task, bits=bits, fewest_shards=1)

    def evaluate() -> float:
        return task.evaluate(stolen)

    press(stolen, terms, store=store, issuer=issuer, shards=shards, evaluate=evaluate)
    return stolen


def press(
    model: torch.nn.Module,
    terms: Terms,
    *,
    store: Path,
    issuer: Signer,
    shards: int,
    evaluate: Callable[[], float],
    before: Callable[[int, Mark], None] | None = None,
) -> None:
    """Enrol a thief, and press a chain of marks into a model.

    Args:
        model: The model, which is changed.
        terms: The terms that the thief enrols under.
        store: The folder of the thief's proof.
        issuer: Who enrols the thief.
        shards: How many shards the thief makes up.
        evaluate: Measures the model, after every shard.
        before: May change the model before a shard's mark is pressed into it; told both.
    """
    thief = Identity.generate()
    issued = enrol(terms, identity=thief.public_key, issuer=issuer)
    forge(model, issued, thief, store, shards=shards, evaluate=evaluate, before=before)
