"""A case: what an attack is measured on; and an attempt: what an attack hands to the verifier."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import polo
from polo.evidence.replay.data import DataSource
from polo.protocol import nonces, signing
from polo.protocol.challenge import Challenge
from polo.protocol.records import Enrolment, Terms
from polo.receipts import OfflineEnrolment
from polo_lab.effort.plan import Plan
from polo_lab.effort.training import Enrolled, LabTask, Trained, train

LEVELS = ("chain", "progress", "replay")
BITS = 128
STRENGTH = 0.02

Respond = Callable[[Challenge, Path], None]
"""Answers a challenge (the first argument) with files in a folder that does not exist yet."""


@dataclass(frozen=True)
class Attempt:
    """What an attack made.

    Attributes:
        proof: The proof folder to judge; its terms are those of `Case.enrolled`.
        respond: Answers the verifier's challenge; None if the attacker stays silent.
        seconds: What the attack took, all told, without answering.
        gradient_steps: Forward and backward passes over a batch that it took, fractions included.
        note: What a reader of the table should know of this attempt.
        possible: Whether there was anything to leave out; else all of it was trained after all.
    """

    proof: Path
    respond: Respond | None
    seconds: float
    gradient_steps: float
    note: str = ""
    possible: bool = True


@dataclass(frozen=True, eq=False)
class Case:
    """A task, how it is trained, and the parties; everything that is drawn comes from the seed.

    Attributes:
        task: The task.
        plan: How it is trained.
        seed: Seed of keys, nonces and salts.
        folder: The case's own folder; the victim's proof lies in it.
        levels: Levels of evidence that the terms ask for.
    """

    task: LabTask
    plan: Plan
    seed: int
    folder: Path
    levels: tuple[str, ...] = LEVELS

    @cached_property
    def issuer(self) -> polo.Identity:
        """Whoever fixes the terms; the verifier trusts it."""
        return self._identity("issuer")

    @cached_property
    def enrolled(self) -> Enrolled:
        """The attacker: key, enrolment and data source. An honest prover enrols alike."""
        return self.enrol("attacker")

    @cached_property
    def victim(self) -> Trained:
        """An honest run of the same plan by somebody else, whose finished model was stolen."""
        return train(self.task, self.plan, self.enrol("victim"), self.folder / "victim")

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The task's training data, column by column."""
        return self.task.train_columns()

    @cached_property
    def device(self) -> str:
        """Where the task trains."""
        return str(next(self.task.build_model().parameters()).device)

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(next(iter(self.columns.values())))

    @property
    def steps(self) -> int:
        """Optimizer steps that an honest run takes: what attacks are compared with."""
        return self.plan.steps(self.samples)

    def enrol(
        self,
        who: str,
        columns: Mapping[str, np.ndarray] | None = None,
        plan: Plan | None = None,
    ) -> Enrolled:
        """Enrol somebody under the case's terms.

        Args:
            who: A name; each has a key, nonces and salts of its own.
            columns: The data to commit to; by default the task's.
            plan: The plan that was agreed on with them, if it is another one.
        """
        drawing, key = self._drawing(who), self._identity(who)
        source = DataSource(columns or self.columns, secret=drawing.bytes(32))
        terms = self.terms(source.root, plan)
        commitment, drawn = nonces.draw(terms.shards.most, drawing.bytes)
        record = Enrolment(terms, key.public_key, commitment, 1_700_000_000, self.issuer.public_key)
        return Enrolled(key, OfflineEnrolment(signing.sign(record, self.issuer), drawn), source)

    def terms(self, data: bytes, plan: Plan | None = None) -> Terms:
        """The terms, for data of a root and, if it is another one, a plan."""
        replay, plan = "replay" in self.levels, plan or self.plan
        return polo.make_terms(
            self.task,
            bits=BITS,
            strength=STRENGTH,
            shards=plan.shards,
            fewest_shards=plan.shards,
            fewest_steps=plan.shard_steps(self.samples),
            start="derived",
            progress="progress" in self.levels,
            replay=plan.recipe(self.samples) if replay else None,
            data=data if replay else None,
        )

    def _identity(self, who: str) -> polo.Identity:
        secret = self._drawing(f"{who}'s key").bytes(32)
        return polo.Identity(Ed25519PrivateKey.from_private_bytes(secret))

    def _drawing(self, who: str) -> np.random.Generator:
        text = f"{self.task.name} {self.plan} {self.seed} {who}"
        return np.random.default_rng(list(text.encode()))


class Attack(Protocol):
    """An attack on evidence of effort.

    Attributes:
        name: Its name in the table.
        knowledge: What the attacker holds.
        data: What training data it holds.
        budget: What it means to spend on gradients; an attempt says what it did.
        description: What it does, in one sentence.
    """

    name: str
    knowledge: str
    data: str
    budget: str
    description: str

    def run(self, case: Case, folder: Path) -> Attempt:
        """Make a proof under the case's terms, in a folder of its own that does not exist yet."""
