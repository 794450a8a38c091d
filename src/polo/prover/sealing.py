"""Sealing: from trained weights to W_x. Finishing step, obfuscation, metrics, commitment."""

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from polo.embedding.embedder import Embedder, Finished
from polo.errors import ChainError, TermsError, WeightsError
from polo.privacy import obfuscation
from polo.privacy.noising import Noise, obfuscate_parameters
from polo.protocol.carrier import Carrier
from polo.protocol.detection import MILLION, Reading
from polo.protocol.records import FinishRecord, NoiseRecord, Nonce, Shard, Terms
from polo.watermark.mark import Mark
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import MemoryCheckpoint, checkpoint_of
from polo.weights.hashing import Commitment, commit

Evaluate = Callable[[], float | Mapping[str, float]]
"""Measures the model: one number (the task's metric) or several by name."""

METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
LARGEST_METRIC = 1e9
_ALIKE = MILLION // 1000
"""How far two measurements of the same weights may be apart: kernels need not repeat exactly."""


class BelowFloorError(ChainError):
    """The model is not as good yet as the terms ask of the shard."""


@dataclass(frozen=True)
class Sealed:
    """A sealed shard, before its receipt.

    Attributes:
        record: What the manifest will say of it.
        checkpoint: Its weights.
        commitment: Their leaf hashes and root.
    """

    record: Shard
    checkpoint: MemoryCheckpoint
    commitment: Commitment


@dataclass(frozen=True)
class Setting:
    """What a shard is sealed under.

    Attributes:
        terms: The terms.
        carrier: The carrier.
        nonce: The shard's nonce.
        previous: Root of W_{x-1}.
        master: The secret that all shards' obfuscation comes from.
        sigma: σ of the obfuscation, in millionths.
        noise: Its noise, if that was drawn ahead.
    """

    terms: Terms
    carrier: Carrier
    nonce: Nonce
    previous: bytes
    master: bytes
    sigma: int
    noise: Noise | None = None


@dataclass(frozen=True)
class Effort:
    """What a shard took."""

    epochs: int
    steps: int


def seal(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    embedder: Embedder,
    finished: Finished | None,
    *,
    setting: Setting,
    effort: Effort,
    evaluate: Evaluate | None,
    replayed: bool = False,
) -> Sealed:
    """Turn the model's weights into W_x, in place, and commit to them.

    Args:
        model: The model.
        parameters: Its trained parameters by canonical name; these alone get noise.
        embedder: The shard's mark in it.
        finished: The finishing step, if one is needed.
        setting: What the shard is sealed under.
        effort: What the shard took.
        evaluate: Measures the sealed weights, in evaluation mode.
        replayed: Whether the sealing may be done again; what `evaluate` changes of the trained
            weights, as an embedding with `max_norm` does in every pass, is then undone.

    Raises:
        BelowFloorError: They are below the terms' floor, so that no verifier would accept them.
    """
    shard, terms = setting.nonce.shard, setting.terms
    if finished:
        embedder.apply(finished)
    noise = setting.noise or noise_of(terms, setting.master, setting.nonce)
    blocks = embedder.mark.blocks
    obfuscate_parameters(parameters, setting.carrier, blocks, noise, sigma=setting.sigma)
    if replayed:
        metrics = _measured(model, parameters, evaluate, terms.task.metric)
    else:
        metrics = _metrics(model, evaluate, terms.task.metric)
    _check_floor(metrics, terms, shard)
    # Hashed, opened and written: three times.
    checkpoint = checkpoint_of(model).on_host()
    reading = _read_back(checkpoint, embedder.mark, setting)
    commitment = commit(checkpoint)
    following = obfuscation.secret_of(setting.master, shard + 1)
    record = Shard(
        shard=shard,
        previous=setting.previous,
        root=commitment.root,
        epochs=effort.epochs,
        steps=effort.steps,
        matches=reading.matches,
        metrics=metrics,
        finish=FinishRecord(finished.turned, finished.largest) if finished else FinishRecord(0, 0),
        noise=NoiseRecord(setting.sigma, obfuscation.secret_commitment(following)),
        evidence={},
        sealed=int(time.time()),
        receipt=None,
    )
    return Sealed(record, checkpoint, commitment)


def noise_of(terms: Terms, master: bytes, nonce: Nonce) -> Noise:
    """The noise that a shard is sealed with."""
    secret = obfuscation.secret_of(master, nonce.shard)
    return Noise(obfuscation.noise_seed(secret, nonce.nonce), terms.noise.fraction)


def _read_back(checkpoint: MemoryCheckpoint, mark: Mark, setting: Setting) -> Reading:
    """Read the mark out of the very weights that will be signed, as a verifier will."""
    if checkpoint.layout.digest != setting.terms.layout:
        raise WeightsError(
            "the model's tensors are no longer those the terms were made for",
            advice="Was a buffer or a parameter added, removed or converted after attach()?",
        )
    reading = read(mark, values_of(mark, setting.carrier, checkpoint))
    if not reading.reaches(setting.terms.thresholds.embed):
        raise ChainError(
            f"the mark of shard {setting.nonce.shard} is not in the model that is to be sealed: "
            f"η = {reading.eta:.3f}",
            advice="Does evaluate() change the weights? Were parameters replaced after attach()? "
            "Attach again after load_state_dict(..., assign=True).",
        )
    return reading


def _metrics(model: torch.nn.Module, evaluate: Evaluate | None, metric: str) -> dict[str, int]:
    if evaluate is None:
        return {}
    # A verifier measures in evaluation mode; who forgets it would sign another number.
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        measured = evaluate()
    finally:
        for module, mode in modes:
            module.training = mode
    named = measured if isinstance(measured, Mapping) else {metric: measured}
    found = {_metric_name(name): _millionths(name, value) for name, value in named.items()}
    if not 0 <= found.get(metric, 0) <= MILLION:
        raise TermsError(
            f"evaluate() measured {metric} = {found[metric] / MILLION:g}; a verifier measures a "
            "rate from 0 to 1 and compares",
            advice="Return the part that is right, 0.93 for 93 %, on the task's public test. What "
            "is no rate goes by another name: {'accuracy': 0.93, 'loss': 1.7}.",
        )
    return found


def _measured(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    evaluate: Evaluate | None,
    metric: str,
) -> dict[str, int]:
    """What `evaluate` measures; the weights are put back if it changes them.

    An embedding with `max_norm` does so in every pass, to the same end each time. Who leaves other
    weights in has measured those, and hears of it.
    """
    before = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
    first = _metrics(model, evaluate, metric)
    if not _put_back(parameters, before):
        return first
    again = _metrics(model, evaluate, metric)
    _put_back(parameters, before)
    if abs(again.get(metric, 0) - first.get(metric, 0)) > _ALIKE:
        raise ChainError(
            "evaluate() changes the weights, and measures them otherwise the next time; a verifier "
            "measures those that are sealed",
            advice="Measure the attached model as it is, and leave it so.",
        )
    return first


@torch.no_grad()
def _put_back(
    parameters: Mapping[str, torch.nn.Parameter], before: Mapping[str, torch.Tensor]
) -> bool:
    """Put weights back where they are not what they were; whether any was not."""
    changed = [name for name, p in parameters.items() if not torch.equal(p.cpu(), before[name])]
    for name in changed:
        parameters[name].copy_(before[name])
    return bool(changed)


def _check_floor(metrics: Mapping[str, int], terms: Terms, shard: int) -> None:
    metric, floor = terms.task.metric, terms.task.floor_of(shard)
    if metrics.get(metric, floor) < floor:
        raise BelowFloorError(
            f"{metric} is {metrics[metric] / MILLION:.4f}, and the terms ask for "
            f"{floor / MILLION:.4f} in shard {shard}",
            advice="Train on; the shard is sealed once the model is as good.",
        )


def _metric_name(name: object) -> str:
    if not isinstance(name, str) or not METRIC.fullmatch(name):
        raise TermsError(f"{name!r} is no name for a metric; use letters, digits, . _ / -")
    return name


def _millionths(name: str, value: object) -> int:
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever evaluate() returned
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not abs(number) < LARGEST_METRIC:
        raise TermsError(
            f"evaluate() measured {name} = {str(value)[:80]}, which a proof cannot hold",
            advice="It returns one number, or numbers by name: {'accuracy': 0.93}.",
        )
    return round(number * MILLION)
