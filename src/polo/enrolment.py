"""Making terms: from a task or a model to what an issuer signs."""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from polo import keys
from polo.errors import CapacityError, SignatureError, TaskError, TermsError
from polo.protocol import nonces, signing
from polo.protocol.canonical import MAX_DOCUMENT_BYTES
from polo.protocol.detection import MILLION
from polo.protocol.entries import secret_commitment
from polo.protocol.layout import Layout
from polo.protocol.records import (
    MAX_FILES,
    Enrolment,
    EvidenceTerms,
    FinishTerms,
    NoiseTerms,
    NonceTerms,
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
from polo.watermark import schemes
from polo.watermark.capacity import Capacity, capacity
from polo.watermark.mark import check_scheme
from polo.weights.base import base_root
from polo.weights.checkpoint import checkpoint_of

if TYPE_CHECKING:
    import torch


_SHARD_BYTES = 1600
"""What a shard takes in a manifest: its record with a receipt and some metrics, and its files."""

_RANGES = {
    "strength": (0, 1000, "It is λ of the mark's loss; 0.001 is usual, and 0 leaves all to the "
                 "finishing step."),
    "budget": (0, 1, "It is the largest edit of the finishing step, as a part of a block's norm; "
               "0.4 is usual."),
    "margin": (0, 1, "It is how far past zero the finishing step turns a bit, as a part of a "
               "block's norm; 0.05 is usual."),
    "noise": (0, 1, "It is σ of the obfuscation, as a part of a tensor's root mean square; 0.04 is "
              "usual."),
    "noise_fraction": (0, 1, "It is the part of the weights that gets noise; 0.25 is usual."),
    "every": (1, 1024, "The mark's gradient is added every so many steps; 1 is every step."),
}  # fmt: skip
"""Least, most and meaning of the numbers that terms take, as people give them."""

Given = TypeVar("Given", int, float, str)


class Asked(Protocol):
    """What is asked at a level of evidence, such as `polo.evidence.replay.recipe.Recipe`."""

    def to_settings(self) -> dict[str, str]:
        """It as the settings of the level."""


def millionths(value: float) -> int:
    """A rate as terms write it."""
    if not math.isfinite(value):
        raise TermsError(f"{value} is no number for terms")
    return round(value * MILLION)


def capacity_of(
    model: "torch.nn.Module", *, block: int | None = None, scheme: str = "ednn"
) -> Capacity:
    """What a model can carry.

    Args:
        model: The model.
        block: Weights per block; by default those that the scheme takes.
        scheme: The scheme whose marks it is to carry.
    """
    from polo.embedding.placement import parameters_of

    parameters = parameters_of(model)
    scales = _norm_scales(model)
    return capacity(
        checkpoint_of(model).layout,
        block=schemes.scheme(scheme).defaults.block if block is None else block,
        trainable={name for name, parameter in parameters.items() if parameter.requires_grad},
        scheme=scheme,
        norms={name for name, parameter in parameters.items() if id(parameter) in scales},
    )


def _norm_scales(model: "torch.nn.Module") -> set[int]:
    """The weights of all norm layers, whoever wrote them: a class says by its name that it is."""
    norms = (
        module
        for module in model.modules()
        if any("Norm" in kind.__name__ for kind in type(module).__mro__)
    )
    own = (dict(module.named_parameters(recurse=False)) for module in norms)
    return {id(parameters["weight"]) for parameters in own if "weight" in parameters}


def make_terms(
    task: Task | Layout,
    *,
    scheme: str = "ednn",
    bits: int | None = None,
    shards: int = 100,
    fewest_shards: int | None = None,
    fewest_steps: int | None = None,
    strength: float | None = None,
    reduction: str | None = None,
    every: int | None = None,
    load: float | None = None,
    block: int | None = None,
    key: str = "block",
    carrier: Sequence[str] | None = None,
    embed: float = 0.99,
    verify: float = 0.70,
    log2_p: int = -64,
    budget: float | None = None,
    margin: float | None = None,
    noise: tuple[float, float] = (0.04, 0.04),
    noise_fraction: float = 0.25,
    start: str = "free",
    parent: bytes | None = None,
    progress: bool | Asked = False,
    replay: Asked | None = None,
    data: bytes | None = None,
    receipts: Asked | None = None,
    uniqueness: bool = False,
    history: str | None = None,
) -> Terms:
    """Terms for a task, with the defaults that docs/protocol.md gives reasons for.

    What is None of bits, strength, reduction, every, load, block, budget and margin is what suits
    the scheme (`polo.watermark.schemes.Defaults`).

    Args:
        task: The task; its model gives the layout, its floor is copied into the terms. Of a bare
            layout a draft is made, to plan with; nobody should sign it.
        scheme: How marks are pressed and read: `ednn`, or another that docs/schemes.md compares.
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
        receipts: What a registry and its log promise, to ask for level receipts: a
            `polo.evidence.receipts.rules.Rules`. Such terms are enrolled live.
        uniqueness: Ask that a registry looks for other chains in the last checkpoint, and says
            that it found none.
        history: What is kept of the checkpoints: `any`, `all`, `streaming` or `after-close`; by
            default all where a level needs them.
    """
    _check_kinds(
        {"bits": bits, "block": block, "every": every, "shards": shards, "log2_p": log2_p,
         "fewest_shards": fewest_shards, "fewest_steps": fewest_steps},
        {"load": load, "strength": strength, "embed": embed, "verify": verify, "budget": budget,
         "margin": margin, "noise_fraction": noise_fraction},
        {"scheme": scheme, "key": key, "reduction": reduction, "start": start},
    )  # fmt: skip
    for name, number in (
        ("strength", strength), ("budget", budget), ("margin", margin), ("every", every),
        ("noise", noise[0]), ("noise", noise[1]), ("noise_fraction", noise_fraction),
    ):  # fmt: skip
        _check_range(name, number)
    usual = schemes.scheme(scheme).defaults
    agreed = SchemeTerms(
        name=scheme,
        bits=_given(bits, usual.bits),
        block=_given(block, usual.block),
        load=millionths(_given(load, usual.load)),
        key=key,
        strength=millionths(_given(strength, usual.strength)),
        reduction=_given(reduction, usual.reduction),
        every=_given(every, usual.every),
    )
    layout, fits, about, base = _subject(task, agreed)
    if parent is not None:
        about = replace(about, floor=about.floor[-1:])
    if carrier is not None:
        fits = fits.only(_carriers(carrier, layout))
    if objection := fits.objection(agreed.bits, agreed.load):
        raise CapacityError(
            objection,
            place=about.name,
            advice="`polo validate` shows what fits, tensor by tensor. "
            + fits.advice(agreed.bits, agreed.load),
        )
    least = fewest_shards if fewest_shards is not None else max(1, len(about.floor))
    if least > shards:
        raise TermsError(
            f"at most {shards} shards are allowed, and at least {least} asked for",
            place="shards",
            advice="Allow more, or ask for fewer (`fewest_shards`): by default as many as the "
            "task's floor has steps.",
        )
    terms = Terms(
        task=about,
        layout=layout.digest,
        carrier=fits.names,
        scheme=agreed,
        thresholds=Thresholds(millionths(embed), millionths(verify), log2_p),
        finish=FinishTerms(
            millionths(_given(budget, usual.budget)), millionths(_given(margin, usual.margin))
        ),
        noise=NoiseTerms(millionths(noise_fraction), millionths(noise[0]), millionths(noise[1])),
        shards=ShardTerms(least, shards, _steps(fewest_steps, replay)),
        start=_start_terms(start, parent),
        evidence=_evidence(task, progress, replay, receipts, uniqueness=uniqueness),
        history=history or ("all" if progress or replay else "any"),
        base=base,
        data=data,
        rewards=(),
        deposit=None,
    )
    terms.check()
    check_scheme(terms.scheme)
    _check_manifest(terms)
    return terms


def _check_kinds(
    whole: Mapping[str, object], rates: Mapping[str, object], words: Mapping[str, object]
) -> None:
    """Refuse what is no number or no word where one is needed, by its name."""
    for kind, given, what in (
        (int, whole, "a whole number"),
        ((int, float), rates, "a number"),
        (str, words, "a word"),
    ):
        for name, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
                raise TermsError(f"{value!r} is not {what}", place=name)
    for name in ("embed", "verify"):
        rate = rates[name]
        if isinstance(rate, int | float) and not 0 < rate <= 1:
            raise TermsError(
                f"a detection rate of {rate:g} is not above 0 and at most 1", place=name
            )


def _check_range(name: str, given: float | None) -> None:
    """Refuse a number that terms cannot hold, in the units that it was given in."""
    if given is None:
        return
    least, most, meaning = _RANGES[name]
    if not least <= given <= most:
        raise TermsError(f"{given:g} is not from {least} to {most}", place=name, advice=meaning)
    if given and not millionths(given):
        raise TermsError(
            f"{given:g} would become 0: terms count in millionths",
            place=name,
            advice=f"Give 0, or at least 0.000001. {meaning}",
        )


def _check_manifest(terms: Terms) -> None:
    """Refuse terms under which a full chain would not fit into its manifest."""
    replayed = any(item.level == "replay" for item in terms.evidence)
    # Checkpoint, opening and nonce of every shard, the start, and the layout.
    files = terms.shards.most * (4 if replayed else 3) + 2
    size = terms.shards.most * _SHARD_BYTES + len(terms.to_bytes())
    if files > MAX_FILES or size > MAX_DOCUMENT_BYTES:
        fitting = min(
            (MAX_FILES - 2) // (4 if replayed else 3),
            (MAX_DOCUMENT_BYTES - len(terms.to_bytes())) // _SHARD_BYTES,
        )
        raise TermsError(
            f"{terms.shards.most} shards do not fit into one manifest",
            place="shards",
            advice=f"Allow at most {fitting} shards, of more steps each; or start a second proof "
            "where the first one ends."
            if fitting > 0
            else "Name fewer carriers: their names alone fill the manifest.",
        )


def _carriers(asked: Sequence[str], layout: Layout) -> tuple[str, ...]:
    """The tensors that the caller wants marks in, each once and in the order of the layout."""
    wanted = {asked} if isinstance(asked, str) else set(asked)
    ties = {tie.alias: tie.name for tie in layout.ties}
    for name in sorted(wanted & ties.keys()):
        raise TermsError(
            f"is tied to {ties[name]}; the two are one tensor, which goes by that name",
            place=name,
            advice=f"Name {ties[name]} instead.",
        )
    unknown = sorted(wanted - layout.index.keys())
    if unknown or not wanted:
        raise TermsError(
            "the model has no such tensor to carry marks" if unknown else "no carrier is named",
            place=unknown[0] if unknown else "",
            advice="`polo validate` lists the tensors that can; by default it is all of them.",
        )
    return tuple(tensor.name for tensor in layout.tensors if tensor.name in wanted)


def _given(value: Given | None, usual: Given) -> Given:
    return usual if value is None else value


def _evidence(
    task: Task | Layout,
    progress: bool | Asked,
    replay: Asked | None,
    receipts: Asked | None,
    *,
    uniqueness: bool,
) -> tuple[EvidenceTerms, ...]:
    asked = [EvidenceTerms("chain", {})]
    if receipts is not None:
        asked.append(EvidenceTerms("receipts", receipts.to_settings()))
    if uniqueness:
        asked.append(EvidenceTerms("uniqueness", {}))
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


def _subject(
    task: Task | Layout, scheme: SchemeTerms
) -> tuple[Layout, Capacity, TaskTerms, bytes | None]:
    if isinstance(task, Layout):
        fits = capacity(task, block=scheme.block, scheme=scheme.name)
        return task, fits, TaskTerms("draft", 1, "metric", ()), None
    from polo.weights.finite import check_new

    model = task.build_model()
    check_new(model)
    floor = tuple(millionths(least) for least in task.floor)
    about = TaskTerms(task.name, task.version, task.metric, floor)
    layout = checkpoint_of(model).layout
    fits = capacity_of(model, block=scheme.block, scheme=scheme.name)
    return layout, fits, about, base_root(model)


def enrol(terms: Terms, *, identity: bytes, issuer: signing.Signer) -> OfflineEnrolment:
    """Sign terms for an identity and draw its nonces: what an issuer does.

    Args:
        terms: What `make_terms` returned.
        identity: The prover's raw public key.
        issuer: The issuer's key.
    """
    _check_parties(terms, identity, issuer)
    commitment, drawn = nonces.draw(terms.shards.most, secrets.token_bytes)
    record = Enrolment(terms, identity, commitment, int(time.time()), issuer.public_key)
    return OfflineEnrolment(signing.sign(record, issuer), drawn)


def enrol_live(
    terms: Terms, *, identity: bytes, issuer: signing.Signer, secret: bytes, issued: int
) -> Enrolment:
    """Sign terms for an identity whose nonces will come in receipts: what a registry does.

    Args:
        terms: Terms that ask for level receipts.
        identity: The prover's raw public key.
        issuer: The registry's key.
        secret: κ, 32 random bytes that the registry keeps to itself until the chain is closed.
        issued: Seconds since 1970.
    """
    _check_parties(terms, identity, issuer)
    if all(item.level != "receipts" for item in terms.evidence):
        raise TermsError("live nonces come in receipts, and these terms ask for none")
    commitment = NonceTerms("live", secret_commitment(secret), 0)
    record = Enrolment(terms, identity, commitment, issued, issuer.public_key)
    return signing.sign(record, issuer)


def _check_parties(terms: Terms, identity: bytes, issuer: signing.Signer) -> None:
    terms.check()
    for key in (identity, issuer.public_key):
        if keys.is_weak(key):
            raise SignatureError("a key of small order, which anybody can sign for")
