"""What forging costs: a mark pressed into a finished model by the finishing step alone.

A forger has a finished model and wants one shard more. No data and no training are needed: the
finishing step turns all wrong bits, or just as many as a verifier asks for, with the smallest
edit. How much accuracy is left is the model's *forge-hardness*. Where nothing is lost the chain
alone shows no effort, and terms had better ask for replay or live receipts.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from polo.embedding.placement import Placement, parameters_of
from polo.embedding.presses import press
from polo.errors import WeightsError
from polo.protocol.carrier import Carrier
from polo.protocol.detection import MILLION, Reading
from polo.protocol.records import FinishTerms, Terms
from polo.watermark.mark import Mark, carrier_of, derive
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import Checkpoint, checkpoint_of

MARGIN = 10_000
"""Forgers turn bits no farther than float rounding asks for, in millionths of a group's norm."""

_MOST_BUDGET = 4 * MILLION
"""The terms' budget binds nobody who writes their own code; this stands for none."""

FREE = 0.005
"""A forger who loses less than half a point of the metric pays nothing."""

_HALVINGS = 6

_LARGEST = 2.0**20
"""Far beyond what any scheme can read; arithmetic on larger weights would overflow."""


@dataclass(frozen=True)
class Forgery:
    """One mark, forged.

    Attributes:
        values: The mark's weights after the edit, as blocks × weights.
        reading: The mark in them.
        edit: Size of the edit relative to the marked weights: ‖δ‖ / ‖w‖ over all of them.
        accepted: Whether a verifier's thresholds are reached.
    """

    values: torch.Tensor
    reading: Reading
    edit: float
    accepted: bool


@dataclass(frozen=True)
class Cost:
    """What forging one mark does to a model, on average over some marks.

    Attributes:
        edit: Size of the edit relative to the marked weights.
        eta: Detection rate that is reached.
        accepted: Whether every one of the marks would pass a verifier.
        metric: The task's metric afterwards; None where it was not measured.
    """

    edit: float
    eta: float
    accepted: bool
    metric: float | None


@dataclass(frozen=True)
class Hardness:
    """A model's forge-hardness.

    Attributes:
        before: The task's metric before; None where it was not measured.
        whole: The cost of turning every bit.
        least: The cost of turning no more than a verifier asks for.
    """

    before: float | None
    whole: Cost
    least: Cost

    @property
    def lost(self) -> float | None:
        """What a forger gives up who turns no more bits than they must; None if not measured."""
        if self.before is None or self.least.metric is None:
            return None
        return self.before - self.least.metric

    @property
    def free(self) -> bool:
        """Whether forging was measured and costs this model nothing."""
        return self.lost is not None and self.least.accepted and self.lost < FREE


def forge(mark: Mark, terms: Terms, values: torch.Tensor, *, least: bool = False) -> Forgery:
    """Press a mark into weights as somebody does who has nothing but them.

    Args:
        mark: The mark.
        terms: Its terms; their budget and margin are ignored, as forgers do.
        values: Its weights, as blocks × weights, double precision on the CPU.
        least: Turn no more bits than a verifier asks for, and those that cost least.

    Raises:
        WeightsError: The weights are not those of a model.
    """
    if not bool((values.abs() < _LARGEST).all()):
        raise WeightsError(
            "the weights that a mark would sit in are too large, or no numbers",
            advice="Is it the file of a trained model?",
        )
    done = _pressed(mark, terms, values, _MOST_BUDGET)
    if not least or not done.accepted:
        return done
    low, high = 0, int(done.edit * MILLION) + 1
    while high < _MOST_BUDGET and not _pressed(mark, terms, values, high).accepted:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        tried = _pressed(mark, terms, values, middle)
        low, high, done = (low, middle, tried) if tried.accepted else (middle, high, done)
    return done


def hardness(
    model: torch.nn.Module,
    terms: Terms,
    *,
    evaluate: Callable[[], float] | None = None,
    marks: int = 3,
) -> Hardness:
    """Forge single marks into a model, measure it with each, and take them out again.

    Args:
        model: The model; it ends as it was.
        terms: The terms that marks are forged under.
        evaluate: Measures the model; by default nothing is measured.
        marks: Marks to take the mean over, each forged into the model as it was.
    """
    carrier = carrier_of(terms, checkpoint_of(model).layout)
    return Hardness(
        evaluate() if evaluate else None,
        _cost(model, terms, carrier, evaluate, marks, least=False),
        _cost(model, terms, carrier, evaluate, marks, least=True),
    )


def edits(checkpoint: Checkpoint, terms: Terms, *, marks: int = 3) -> Hardness:
    """What forging does to the weights of a checkpoint, without a model to measure.

    Args:
        checkpoint: The weights; only blocks that marks sit in are read.
        terms: The terms that marks are forged under.
        marks: Marks to take the mean over.
    """
    carrier = carrier_of(terms, checkpoint.layout)
    found: dict[bool, list[Forgery]] = {False: [], True: []}
    for number in range(marks):
        mark = derive(terms, carrier, seed_of(number))
        values = torch.from_numpy(values_of(mark, carrier, checkpoint).astype(np.float64))
        for least, made in found.items():
            made.append(forge(mark, terms, values, least=least))
    return Hardness(None, _mean(found[False], []), _mean(found[True], []))


@contextmanager
def forged(
    model: torch.nn.Module, terms: Terms, carrier: Carrier, seed: bytes, *, least: bool = False
) -> Iterator[Forgery]:
    """A model with one forged mark in it; afterwards it is as it was.

    Args:
        model: The model.
        terms: The terms.
        carrier: The carrier that they name.
        seed: What the mark is derived from.
        least: As of `forge`.
    """
    mark = derive(terms, carrier, seed)
    placement = Placement(carrier, mark.blocks, parameters_of(model))
    before = placement.gather(torch.float64)
    done = forge(mark, terms, before.cpu(), least=least)
    placement.write(done.values)
    try:
        yield done
    finally:
        placement.write(before)


def seed_of(number: int) -> bytes:
    """Seeds of marks like any others."""
    return hashlib.sha256(b"a mark to forge, number %d" % number).digest()


def _cost(
    model: torch.nn.Module,
    terms: Terms,
    carrier: Carrier,
    evaluate: Callable[[], float] | None,
    marks: int,
    *,
    least: bool,
) -> Cost:
    made, metrics = [], []
    for number in range(marks):
        with forged(model, terms, carrier, seed_of(number), least=least) as forgery:
            made.append(forgery)
            metrics += [evaluate()] if evaluate else []
    return _mean(made, metrics)


def _mean(made: Sequence[Forgery], metrics: Sequence[float]) -> Cost:
    return Cost(
        sum(one.edit for one in made) / len(made),
        sum(one.reading.eta for one in made) / len(made),
        all(one.accepted for one in made),
        sum(metrics) / len(metrics) if metrics else None,
    )


def _pressed(mark: Mark, terms: Terms, values: torch.Tensor, budget: int) -> Forgery:
    loose = replace(terms, finish=FinishTerms(budget, MARGIN))
    after = press(mark, loose, torch.device("cpu")).finish(values).float().double()
    reading = read(mark, after.numpy())
    edit = float((after - values).norm() / values.norm().clamp(min=1e-300))
    asked = terms.thresholds
    return Forgery(after, reading, edit, reading.passes(asked.verify, asked.log2_p))
