"""A pair that is trained, with and without marks, and verified: what the paper's tables are of."""

import functools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import polo
from polo.protocol.records import Terms
from polo.prover import Proof
from polo.tasks import Task
from polo.verifier import Outcome
from polo.verifier.policy import Policy
from polo_lab.experiments import machine
from polo_lab.experiments.experiment import Bench
from polo_lab.experiments.lines import Line, Settings
from polo_lab.experiments.paper.pairs import PAIRS, Pair
from polo_lab.training import Epoch, Loop, evaluate, train_in

SHARDS = 200
"""Shards that terms allow, at most: more than any run has."""

NONE = "none"
"""The scheme of a training without marks."""

_PASSES = 5
"""Tests of one model that are timed: a single one may be anything."""

_PLAIN = ("fidelity", "learning-rate", "eta-g")
"""Experiments whose lines say how well training without marks does."""

_NO_EDIT = 1e-6
"""The least budget that terms can give a finishing step: it turns nothing."""


class Subject:
    """A pair with its data on the device, under one seed; all its runs train the same model.

    Compiling takes longer than a short run, so that they share one loop: a run's model is the next
    one's, trained anew.

    Args:
        pair: The pair.
        epochs: Epochs of a run.
        seed: Seed of start and order.
        rate: The highest learning rate; 0 for the pair's own.
    """

    def __init__(self, pair: Pair, epochs: int, seed: int, rate: float = 0.0) -> None:
        self.seed = seed
        self.task = pair.task
        self.feed = self.task.feed(seed)
        self.course = pair.course(epochs, rate)
        self._loop: Loop | None = None
        self._first: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, settings: Settings) -> "Subject":
        """The subject of some settings: `pair`, `epochs`, `seed`, perhaps `rate`."""
        pair = PAIRS[settings["pair"]]
        return cls(pair, settings["epochs"], settings["seed"], settings.get("rate", 0.0))

    def start(self) -> Loop:
        """A run about to begin, as every run of this seed does: weights, order, generators."""
        torch.manual_seed(self.seed)
        if self._loop is None:
            model = self.task.build_model()
            self._first = {name: value.clone() for name, value in model.state_dict().items()}
            self._loop = Loop(model, self.feed, self.course)
        else:
            self._loop.restart(self._first)
        torch.manual_seed(self.seed)
        return self._loop


@dataclass(frozen=True)
class Plain:
    """A training without marks.

    Attributes:
        model: The model.
        accuracy: Its accuracy.
        epochs: Its epochs.
        seconds: What training took.
        compiled: How its steps were compiled; empty if they were not.
        problem: Why they could not be; empty if they were, or nobody asked.
    """

    model: nn.Module
    accuracy: float
    epochs: Sequence[Epoch]
    seconds: float
    compiled: str
    problem: str


@dataclass(frozen=True)
class Marking:
    """How marks are made.

    Attributes:
        scheme: The scheme.
        bits: Bits of each mark.
        embed: η_G: a shard ends once its mark reads so well.
        finish: Whether what training has not pressed yet may be turned by a last edit, which
            stands for the paper's δW. Without δW, the paper says, shards take 2 to 4 times as long.
        strength: λ; None for the scheme's own.
        every: A mark is pressed in every so many steps, that much harder; None for the scheme's own
            pace.
    """

    scheme: str
    bits: int
    embed: float = 0.99
    finish: bool = True
    strength: float | None = None
    every: int | None = None

    def terms(self, task: Task) -> Terms:
        """Terms of level chain."""
        return polo.make_terms(
            task,
            scheme=self.scheme,
            bits=self.bits,
            embed=self.embed,
            budget=None if self.finish else _NO_EDIT,
            strength=self.strength,
            every=self.every,
            fewest_shards=1,
            shards=SHARDS,
        )


@dataclass(frozen=True)
class Marked:
    """A training with marks.

    Attributes:
        subject: What was trained.
        model: The model.
        accuracy: Its accuracy.
        epochs: Its epochs.
        terms: The terms.
        proof: The proof, with all checkpoints.
        issuer: Who enrolled the owner.
        seconds: What training took, with everything about the proof.
        spent: Seconds of it by the prover's own count, `embedding` and `sealing`; and `tests`, the
            accuracy of every shard, which is part of sealing and which plain training does without.
        compiled: As of a plain training.
        problem: Likewise.
    """

    subject: Subject
    model: nn.Module
    accuracy: float
    epochs: Sequence[Epoch]
    terms: Terms
    proof: Proof
    issuer: polo.Identity
    seconds: float
    spent: dict[str, float]
    compiled: str
    problem: str

    @property
    def etas(self) -> list[float]:
        """How each mark read when it was sealed."""
        return [s.matches / self.terms.scheme.bits for s in self.proof.manifest.shards]

    @property
    def accuracies(self) -> list[float]:
        """Accuracy of every sealed shard."""
        return [s.metrics["accuracy"] / 1_000_000 for s in self.proof.manifest.shards]

    @property
    def shard_rate(self) -> float:
        """Shards for each epoch."""
        return len(self.proof.manifest.shards) / len(self.epochs)


def subject_of(settings: Settings, bench: Bench) -> Subject:
    """The subject of a bench."""
    return bench.once(("subject", settings.get("rate", 0.0)), lambda: Subject.of(settings))


def plain_accuracy(settings: Settings, subject: Subject, bench: Bench) -> float:
    """Accuracy without marks: as it is recorded, or trained now, once for a bench."""
    for name in _PLAIN:
        for line in bench.recorded(name).done:
            if _alike(line, settings) and (known := _without_marks(line)) is not None:
                return known
    plain = bench.once(("plain", subject.course), functools.partial(train_plain, subject))
    return plain.accuracy


def _alike(line: Line, settings: Settings) -> bool:
    """Whether a line is about the same training on such a machine, whatever its marks."""
    usual = PAIRS[settings["pair"]].task.course.rate
    here = line.machine is not None and line.machine["gpu"] == machine.describe()["gpu"]
    same = all(line.settings[name] == settings[name] for name in ("pair", "epochs", "seed"))
    rates = {own.get("rate", 0.0) or usual for own in (line.settings, settings)}
    return here and same and len(rates) == 1


def _without_marks(line: Line) -> float | None:
    name = "accuracy" if line.settings["scheme"] == NONE else "plain_accuracy"
    return line.figures.get(name)


def train_plain(subject: Subject) -> Plain:
    """Train without marks."""
    found = train_in(subject.start())
    accuracy = subject.task.evaluate(found.model)
    return Plain(found.model, accuracy, found.epochs, found.seconds, found.compiled, found.problem)


def bare_tests(subject: Subject, model: nn.Module) -> list[float]:
    """Seconds of testing a model a few times, as a verifier does: in a network built anew.

    Training may have put the weights into another memory format; a verifier reads them from a file.
    """
    fresh = subject.task.build_model()
    fresh.load_state_dict(model.state_dict())
    subject.task.evaluate(fresh)
    return [_timed(lambda: subject.task.evaluate(fresh))[1] for _ in range(_PASSES)]


def _timed(measure: Callable[[], float]) -> tuple[float, float]:
    """What is measured, and seconds that it took."""
    began = time.perf_counter()
    return measure(), time.perf_counter() - began


def train_marked(subject: Subject, marking: Marking, folder: Path) -> Marked:
    """Train from the same start, in the same order, with a prover attached."""
    issuer, owner = polo.Identity.generate(), polo.Identity.generate()
    terms = marking.terms(subject.task)
    issued = polo.enrol(terms, identity=owner.public_key, issuer=issuer)
    shutil.rmtree(folder, ignore_errors=True)
    prover = polo.Prover(issued, key=owner, store=folder)
    loop, tests = subject.start(), 0.0

    def metric() -> float:
        nonlocal tests
        accuracy, took = _timed(lambda: evaluate(loop.model, subject.feed, subject.course))
        tests += took
        return accuracy

    found = train_in(loop, prover=prover, metric=metric)
    began = time.perf_counter()
    proof = prover.finish()
    seconds = found.seconds + time.perf_counter() - began
    return Marked(
        subject=subject,
        model=found.model,
        accuracy=subject.task.evaluate(found.model),
        epochs=found.epochs,
        terms=terms,
        proof=proof,
        issuer=issuer,
        seconds=seconds,
        spent={
            "embedding": prover.timings.embedding,
            "sealing": prover.timings.sealing,
            "tests": tests,
        },
        compiled=found.compiled,
        problem=found.problem,
    )


def verified(marked: Marked, accuracy: str) -> tuple[bool, float]:
    """Whether a verifier accepts, and seconds that it took.

    Args:
        marked: What was trained.
        accuracy: Which shards are tested: `all`, `sample` or `none`.
    """
    began = time.perf_counter()
    found = polo.verify(
        marked.proof.path,
        trust=marked.issuer.public_key,
        task=marked.subject.task,
        policy=Policy(accuracy=accuracy),
    )
    return found.outcome is Outcome.ACCEPTED, time.perf_counter() - began


def shown(subject: Subject) -> dict[str, Any]:
    """What a line says about its data and model."""
    count = sum(p.numel() for p in subject.task.build_model().parameters())
    return {"data": subject.task.data.title, "weights": count}
