"""Making terms: from a task or a model to what an issuer signs."""

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from polo import keys
from polo.errors import CapacityError, SignatureError, TaskError, TermsError
from polo.protocol import nonces, signing
from polo.protocol.detection import MILLION
from polo.protocol.layout import Layout
from polo.protocol.records import (
    Enrolment,
    EvidenceTerms,
    FinishTerms,
    NoiseTerms,
    SchemeTerms,
    ShardTerms,
    StartTerms,
    TaskTerms,
    Terms,
    Thresholds,
)
from polo.receipts import OfflineEnrolment
from polo.tasks import Task
from polo.tasks.training import Trainable
from polo.watermark.capacity import Capacity, capacity
from polo.weights.checkpoint import checkpoint_of

if TYPE_CHECKING:
    import torch

BLOCK = 256
LOAD = 0.125


class Asked(Protocol):
    """What is asked at a level of evidence, such as `polo.evidence.replay.recipe.Recipe`."""

    def to_settings(self) -> dict[str, str]:
        """It as the settings of the level."""


def millionths(value: float) -> int:
    """A rate as terms write it."""
    if not math.isfinite(value):
        raise TermsError(f"{value} is no number for terms")
    return round(value * MILLION)


def capacity_of(model: "torch.nn.Module", *, block: int = BLOCK) -> Capacity:
    """What a model can carry."""
    from polo.embedding.placement import parameters_of

    trained = parameters_of(model).items()
    trainable = {name for name, parameter in trained if parameter.requires_grad}
    return capacity(checkpoint_of(model).layout, block=block, trainable=trainable)


def make_terms(
    task: Task | Layout,
    *,
    bits: int = 256,
    shards: int = 100,
    fewest_shards: int | None = None,
    fewest_steps: int | None = None,
    strength: float = 0.001,
    reduction: str = "sum",
    every: int = 1,
    load: float = LOAD,
    block: int = BLOCK,
    key: str = "block",
    carrier: Sequence[str] | None = None,
    embed: float = 0.99,
    verify: float = 0.70,
    log2_p: int = -64,
    budget: float = 0.40,
    margin: float = 0.05,
    noise: tuple[float, float] = (0.04, 0.04),
    noise_fraction: float = 0.25,
    start: str = "free",
    parent: bytes | None = None,
    progress: bool | Asked = False,
    replay: Asked | None = None,
    data: bytes | None = None,
) -> Terms:
    """Terms for a task, with the defaults that docs/protocol.md gives reasons for.

    Args:
        task: The task; its model gives the layout, its floor is copied into the terms. Of a bare
            layout a draft is made, to plan with; nobody should sign it.
        bits: Bits of each mark.
        shards: Most shards.
        fewest_shards: Fewest shards; by default as many as the task's floor has steps, so that the
            last floor is always asked of somebody.
        fewest_steps: Fewest optimizer steps per shard; by default a whole pass over the data
            where replay is asked for, and 1 else.
        strength: λ of the mark's loss.
        reduction: Whether bit losses are summed (`sum`) or averaged (`mean`).
        every: The mark's gradient is added every so many steps, that many times as strong.
        load: Bits per weight of a block.
        block: Weights per block, a power of two.
        key: `block`, or `dense` for comparison.
        carrier: Tensors that carry marks; by default all that can.
        embed: Detection rate at which a shard is sealed.
        verify: Detection rate that a verifier asks.
        log2_p: log2 of the chance by luck that a verifier accepts.
        budget: Largest edit of the finishing step, relative to a block's norm.
        margin: How far past zero the finishing step turns a bit, relative to a block's norm.
        noise: Least and most σ of the obfuscation, relative to a tensor's root mean square.
        noise_fraction: Part of the weights that get noise.
        start: `free`, or `derived` for a start that is drawn from the enrolment and that the
            verifier draws again (`polo.draw_start`).
        parent: Root of the model that training must start from, for a buyer or for a fine-tune;
            by default it may start anywhere. A finished model is asked for the last step of the
            task's floor from its first shard on.
        progress: Whether to ask for level progress, for which all checkpoints are kept; thresholds
            of your own are a `polo.evidence.progress.rules.Rules`.
        replay: The recipe, to ask for level replay: every step of training is then fixed, and all
            checkpoints are kept.
        data: Root of the data, which level replay needs: that in the trainer's `data.json`.
    """
    layout, fits, about = _subject(task, block)
    if parent is not None:
        about = replace(about, floor=about.floor[-1:])
    if objection := fits.objection(bits, millionths(load)):
        raise CapacityError(
            objection,
            place=about.name,
            advice="`polo validate` shows what fits, tensor by tensor. "
            + fits.advice(bits, millionths(load)),
        )
    least = fewest_shards if fewest_shards is not None else max(1, len(about.floor))
    terms = Terms(
        task=about,
        layout=layout.digest,
        carrier=tuple(carrier) if carrier is not None else fits.names,
        scheme=SchemeTerms(
            "ednn", bits, block, millionths(load), key, millionths(strength), reduction, every
        ),
        thresholds=Thresholds(millionths(embed), millionths(verify), log2_p),
        finish=FinishTerms(millionths(budget), millionths(margin)),
        noise=NoiseTerms(millionths(noise_fraction), millionths(noise[0]), millionths(noise[1])),
        shards=ShardTerms(least, shards, _steps(fewest_steps, replay)),
        start=_start_terms(start, parent),
        evidence=_evidence(task, progress, replay),
        history="all" if progress or replay else "any",
        base=None,
        data=data,
        rewards=(),
        deposit=None,
    )
    terms.check()
    return terms


def _evidence(
    task: Task | Layout, progress: bool | Asked, replay: Asked | None
) -> tuple[EvidenceTerms, ...]:
    asked = [EvidenceTerms("chain", {})]
    if progress:
        settings = {} if progress is True else progress.to_settings()
        asked.append(EvidenceTerms("progress", settings))
    if replay is None:
        return tuple(asked)
    if not isinstance(task, (Trainable, Layout)):
        raise TaskError(
            f"the task {task.name!r} cannot be replayed: it has no columns or no train_step",
            advice="See polo.tasks.training.Trainable, or do not ask for replay.",
        )
    return (*asked, EvidenceTerms("replay", replay.to_settings()))


def _steps(fewest: int | None, replay: Asked | None) -> int:
    """Fewest steps of a shard: with replay, shards of a step or two would ask for no effort."""
    if fewest is not None:
        return fewest
    if replay is None:
        return 1
    settings = replay.to_settings()
    return -(-int(settings["samples"]) // int(settings["batch"]))


def _start_terms(start: str, parent: bytes | None) -> StartTerms:
    if start not in ("free", "derived"):
        raise TermsError(f"a start is free or derived, not {start!r}")
    if parent is None:
        return StartTerms(start, None)
    if start == "derived":
        raise TermsError(
            "training starts from a parent or from a drawn start, not from both",
            advice="Leave the start out where a parent is named.",
        )
    return StartTerms("parent", parent)


def _subject(task: Task | Layout, block: int) -> tuple[Layout, Capacity, TaskTerms]:
    if isinstance(task, Layout):
        return task, capacity(task, block=block), TaskTerms("draft", 1, "metric", ())
    model = task.build_model()
    floor = tuple(millionths(least) for least in task.floor)
    about = TaskTerms(task.name, task.version, task.metric, floor)
    return checkpoint_of(model).layout, capacity_of(model, block=block), about


def enrol(terms: Terms, *, identity: bytes, issuer: signing.Signer) -> OfflineEnrolment:
    """Sign terms for an identity and draw its nonces: what an issuer does.

    Args:
        terms: What `make_terms` returned.
        identity: The prover's raw public key.
        issuer: The issuer's key.
    """
    terms.check()
    for key in (identity, issuer.public_key):
        if keys.is_weak(key):
            raise SignatureError("a key of small order, which anybody can sign for")
    commitment, drawn = nonces.draw(terms.shards.most, secrets.token_bytes)
    record = Enrolment(terms, identity, commitment, int(time.time()), issuer.public_key)
    return OfflineEnrolment(signing.sign(record, issuer), drawn)
