"""What is left of the marks, and what others can do to a model that carries them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from polo.embedding.forging import Hardness, forged, hardness, seed_of
from polo.embedding.placement import Placement, parameters_of
from polo.ownership import Finding, identify
from polo.ownership.claimant import Claimant
from polo.protocol.carrier import Carrier
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import checkpoint_of
from polo_lab.attacks.overwriting import overwrite
from polo_lab.effort.training import LabTask
from polo_lab.schemes.courses import Further, Subject, feed_of
from polo_lab.schemes.stealth import FEWEST, Stealth, detectability
from polo_lab.schemes.training import Marked, Plain

STRONGER = 10
"""An overwriter's marks are so many times as strong as the owner's."""

STRICT = 950_000
"""A detection rate, in millionths, that honest marks reach in their own checkpoint."""

_BLOCKS = 512
"""Blocks that a classifier is trained and tested on, where there are so many."""

_THIEF = 2**32
"""Seed of a thief's order of samples; no owner's."""

_STATISTICS = 1000
"""Inputs that a forger re-estimates batch-norm's statistics on."""


@dataclass(frozen=True)
class Found:
    """A chain's marks, all read from one model.

    Attributes:
        etas: Detection rate of every mark, oldest first.
        log2_p: log2 of the chance of all that by luck, corrected for what was tried.
        claimed: Whether `polo identify` names the owner.
    """

    etas: Sequence[float]
    log2_p: float
    claimed: bool

    @property
    def least(self) -> float:
        """The weakest mark."""
        return min(self.etas, default=0.0)

    @property
    def mean(self) -> float:
        """All marks, on average."""
        return sum(self.etas) / len(self.etas) if self.etas else 0.0


def found_in(model: nn.Module, marked: Marked, folder: Path) -> Found:
    """The owner's marks in a model, as `polo identify` reads them."""
    path = folder / "found.safetensors"
    save_file(tensors_of(model), path)
    claim = identify(path, [marked.proof.path], trust=marked.issuer.public_key).claims[0]
    etas = [mark.reading.eta for mark in claim.marks if mark.reading.bits]
    return Found(etas, claim.log2_p, claim.finding is Finding.CLAIM)


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """A model's tensors to save; those that are tied come apart."""
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
    }


@dataclass(frozen=True)
class Overwriting:
    """What an overwriter made of a stolen model.

    Attributes:
        owner: The owner's marks afterwards.
        accuracy: The model's accuracy afterwards.
    """

    owner: Found
    accuracy: float


def overwritten(task: LabTask, subject: Subject, marked: Marked, folder: Path) -> Overwriting:
    """Let a thief train on with a chain of the same scheme, and far stronger marks."""
    owner = marked.terms.scheme
    made = overwrite(
        marked.model,
        task,
        Further(task, subject, seed=_THIEF).epoch,
        store=folder / "thief",
        issuer=marked.issuer,
        epochs=subject.thief,
        learning_rate=subject.course.rate,
        bits=owner.bits,
        strength=STRONGER * owner.strength / 1_000_000,
        scheme=owner.name,
        load=owner.load / 1_000_000,
    )
    return Overwriting(found_in(made.model, marked, folder), task.evaluate(made.model))


@dataclass(frozen=True)
class Forging:
    """What one more mark costs a model if it is forged.

    Attributes:
        alone: By somebody without any data.
        strict: The same if a verifier asked for η ≥ 0.95, as sealed marks have it.
        estimated: Accuracy after turning every bit and estimating the statistics of batch-norm
            anew, for which inputs are needed but no labels; None if there is no batch-norm.
    """

    alone: Hardness
    strict: Hardness
    estimated: float | None


def forging(task: LabTask, subject: Subject, marked: Marked) -> Forging:
    """Forge one more mark into the finished model, without training."""
    model, terms = marked.model, marked.terms
    strict = replace(terms, thresholds=replace(terms.thresholds, verify=STRICT))
    alone, asked = (
        hardness(model, under, evaluate=lambda: task.evaluate(model)) for under in (terms, strict)
    )
    if not _batch_norms(model):
        return Forging(alone, asked, None)
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    inputs = _inputs(task, subject, next(model.parameters()).device)
    with forged(model, terms, carrier, seed_of(0)):
        other = copy.deepcopy(model)
    _estimate(other, inputs)
    return Forging(alone, asked, task.evaluate(other))


def told_apart(marked: Marked, plain: Plain, *, seed: int) -> Stealth | None:
    """How well a classifier tells marked blocks from blocks of the unmarked model.

    Blocks are those of the newest marks, as many as make a test worth its name; None if all
    together are too few. Each is taken from one of the two models alone: a classifier that has
    seen its twin could tell by that.
    """
    claimant = Claimant(marked.proof.path, {marked.issuer.public_key: "issuer"})
    blocks: dict[int, None] = {}
    for derived in reversed(claimant.marks()[0]):
        if len(blocks) < _BLOCKS:
            blocks |= dict.fromkeys(derived.mark.blocks)
    chosen = np.random.default_rng(seed).permutation(sorted(blocks)).tolist()
    half = len(chosen) // 2
    if half < FEWEST:
        return None
    return detectability(
        _scaled(marked.model, claimant.carrier, chosen[:half]),
        _scaled(plain.model, claimant.carrier, chosen[half : 2 * half]),
        seed=seed,
    )


def _scaled(model: nn.Module, carrier: Carrier, blocks: Sequence[int]) -> NDArray[np.float64]:
    """Blocks, each divided by its tensor's root mean square."""
    parameters = parameters_of(model)
    names = [carrier.layout.tensors[carrier.locate(block).tensor].name for block in blocks]
    sizes = {name: float(parameters[name].detach().square().mean().sqrt()) for name in set(names)}
    rows = Placement(carrier, tuple(blocks), parameters).gather(torch.float64).cpu().numpy()
    found: NDArray[np.float64] = rows / np.array([[sizes[name] or 1.0] for name in names])
    return found


@torch.no_grad()
def _estimate(model: nn.Module, inputs: torch.Tensor) -> None:
    """Take the statistics of batch-norm from some inputs."""
    for norm in _batch_norms(model):
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    model(inputs)


def _inputs(task: LabTask, subject: Subject, device: torch.device) -> torch.Tensor:
    """Some inputs, as they are and without labels."""
    course = replace(subject.course, batch=_STATISTICS, augmentation=None, precision="float32")
    return next(feed_of(task, 0, device).batches(course, 0))[0]


def _batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
