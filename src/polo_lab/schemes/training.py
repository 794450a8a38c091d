"""Training a subject with a prover attached, and without one."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import polo
from polo.embedding.riga import RigaPress
from polo.protocol.detection import MILLION
from polo.protocol.records import Shard, Terms
from polo.prover import Proof
from polo_lab import training
from polo_lab.effort.training import LabTask
from polo_lab.schemes.courses import Subject, feed_of
from polo_lab.training import Feed


@dataclass(frozen=True)
class Setting:
    """How marks are made; what is None is the scheme's default.

    Attributes:
        scheme: Name of the scheme.
        bits: Bits of each mark.
        load: Bits per weight of a block.
        strength: λ.
        budget: Largest edit of the finishing step, relative to a block's norm.
        key: The kind of key.
        disguised: Whether RIGA's discriminator keeps marks inconspicuous, as it does by itself
            unless terms ask for replay.
    """

    scheme: str
    bits: int
    load: float | None = None
    strength: float | None = None
    budget: float | None = None
    key: str = "block"
    disguised: bool = True

    def terms(self, task: LabTask) -> Terms:
        """Terms for a task, of level chain alone."""
        return polo.make_terms(
            task,
            scheme=self.scheme,
            bits=self.bits,
            load=self.load,
            strength=self.strength,
            budget=self.budget,
            key=self.key,
            fewest_shards=1,
        )


@dataclass(frozen=True)
class Plain:
    """A finished training without any mark.

    Attributes:
        model: The model.
        accuracy: Its accuracy.
        seconds: What training took.
    """

    model: nn.Module
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Marked:
    """A finished training with a chain of marks.

    Attributes:
        model: The model.
        accuracy: Its accuracy.
        seconds: What training took, sealing included.
        terms: The terms.
        proof: The proof.
        issuer: Who enrolled the trainer.
        before: Detection rate at the end of every epoch, before any finishing step.
    """

    model: nn.Module
    accuracy: float
    seconds: float
    terms: Terms
    proof: Proof
    issuer: polo.Identity
    before: Sequence[float]

    @property
    def shards(self) -> Sequence[Shard]:
        """The sealed shards."""
        return self.proof.manifest.shards

    @property
    def sealed(self) -> float:
        """Mean detection rate of the marks as they were sealed."""
        matches = sum(shard.matches for shard in self.shards)
        return matches / (self.terms.scheme.bits * len(self.shards)) if self.shards else 0.0

    @property
    def edit(self) -> float:
        """Largest edit of a finishing step, relative to its group's norm."""
        return max((shard.finish.largest for shard in self.shards), default=0) / MILLION


def train_plain(task: LabTask, subject: Subject, seed: int) -> Plain:
    """Train without any mark."""
    model, feed = _start(task, seed)
    done = training.train(model, feed, subject.course)
    began = time.perf_counter()
    accuracy = task.evaluate(model)
    return Plain(model, accuracy, done.seconds + time.perf_counter() - began)


@contextlib.contextmanager
def _undisguised() -> Iterator[None]:
    """Press RIGA's marks as under replay: no unmarked block is looked at to learn from."""
    own = RigaPress.reference
    RigaPress.reference = lambda *_: ()  # type: ignore[method-assign]
    try:
        yield
    finally:
        RigaPress.reference = own  # type: ignore[method-assign]


def train_marked(
    task: LabTask, subject: Subject, setting: Setting, seed: int, folder: Path
) -> Marked:
    """Train from the same start, in the same order, with a prover attached.

    Args:
        task: The task.
        subject: How it is trained.
        setting: How marks are made.
        seed: Seed of the start and of the order of samples.
        folder: Where the proof is written.
    """
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    terms = setting.terms(task)
    issued = polo.enrol(terms, identity=trainer.public_key, issuer=issuer)
    model, feed = _start(task, seed)
    prover = polo.Prover(issued, key=trainer, store=folder, retention="thin")
    with contextlib.nullcontext() if setting.disguised else _undisguised():
        done = training.train(
            model, feed, subject.course, prover=prover, metric=lambda: task.evaluate(model)
        )
        began = time.perf_counter()
        proof = prover.finish()
    accuracy = task.evaluate(model)
    seconds = done.seconds + time.perf_counter() - began
    before = [epoch.eta for epoch in done.epochs if epoch.eta is not None]
    return Marked(model, accuracy, seconds, terms, proof, issuer, before)


def _start(task: LabTask, seed: int) -> tuple[nn.Module, Feed]:
    torch.manual_seed(seed)
    model = task.build_model()
    return model, feed_of(task, seed, next(model.parameters()).device)
