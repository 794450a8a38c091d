"""A chain that an attacker holds: all of its checkpoints, and for the record all of its marks.

Attackers see the checkpoints. What is read of the owner's marks is read by whoever measures.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import polo
from polo.evidence.replay.order import Order
from polo.ownership import Finding, compare, identify
from polo.ownership import Order as Precedence
from polo.ownership.claimant import Claimant
from polo.protocol.detection import Reading
from polo.protocol.digest import tagged, u64
from polo.verifier import Outcome
from polo.watermark.mark import Mark
from polo.watermark.reading import read, values_of
from polo.weights.checkpoint import HeldCheckpoint, checkpoint_of
from polo_lab.baselines import chain
from polo_lab.baselines.chain import Chained
from polo_lab.baselines.job import Job, setting_of
from polo_lab.schemes.training import Setting


@dataclass(frozen=True)
class Stage:
    """What an attack made of one checkpoint.

    Attributes:
        shard: The shard that it ended.
        seconds: What the attack took.
        accuracy: The task's metric afterwards.
        accuracy_before: The metric of the owner's checkpoint.
        owner: The owner's mark of this shard afterwards.
        owner_before: The same in the owner's checkpoint.
        thief: The attacker's mark.
        sealed: Whether the attacker's own chain has a shard of it.
    """

    shard: int
    seconds: float
    accuracy: float
    accuracy_before: float
    owner: Reading
    owner_before: Reading
    thief: Reading
    sealed: bool = True

    def row(self) -> dict[str, Any]:
        """All of it, plain."""
        return {
            "shard": self.shard,
            "seconds": self.seconds,
            "accuracy": self.accuracy,
            "accuracy_before": self.accuracy_before,
            "owner_eta": self.owner.eta,
            "owner_log2_p": self.owner.log2_p,
            "owner_eta_before": self.owner_before.eta,
            "thief_eta": self.thief.eta,
            "thief_log2_p": self.thief.log2_p,
            "sealed": self.sealed,
        }


@dataclass(frozen=True, eq=False)
class Victim:
    """An owner's finished chain.

    Attributes:
        job: What was trained.
        setting: How its marks were made.
        made: The model, the proof, and what they took.
    """

    job: Job
    setting: Setting
    made: Chained

    @classmethod
    def train(cls, job: Job, setting: Setting, folder: Path) -> "Victim":
        """Train honestly with a prover attached, and keep every checkpoint."""
        return cls(job, setting, chain.prove(job, setting, folder))

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self.made.proof.shards

    @property
    def seconds(self) -> float:
        """What training and proving took."""
        return self.made.seconds["training"]

    def checkpoint(self, shard: int) -> HeldCheckpoint:
        """The checkpoint that a shard ended with, obfuscated, as verifiers and attackers get it."""
        with self._claimant.folder.checkpoint(shard, self._claimant.layout) as file:
            return file.held()

    def accuracy(self, shard: int) -> float:
        """The task's metric of that checkpoint, as it was measured when the shard was sealed."""
        return self.made.accuracies[shard - 1]

    def reading(self, shard: int, model: nn.Module) -> Reading:
        """The mark of a shard as it is in a model."""
        mark = self._marks[shard]
        return read(mark, values_of(mark, self._claimant.carrier, checkpoint_of(model)))

    def claim(self, model: nn.Module, folder: Path) -> dict[str, Any]:
        """What `polo identify` says of the owner's marks in a model, all of them together."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "found.safetensors"
        tensors = model.state_dict().items()
        save_file(
            {name: value.detach().cpu().contiguous().clone() for name, value in tensors}, path
        )
        found = identify(path, [self.made.proof.path], trust=self.made.issuer.public_key).claims[0]
        etas = [mark.reading.eta for mark in found.marks if mark.reading.bits]
        return {
            "claimed": found.finding is Finding.CLAIM,
            "log2_p": found.log2_p,
            "etas": etas,
        }

    def judged(self, proof: Path) -> dict[str, Any]:
        """What verifiers say of an attacker's proof, and whose they say came first."""
        trust, task = self.made.issuer.public_key, self.job.lab_task
        verdict = polo.verify(proof, trust=trust, task=task)
        shards = verdict.facts.get("shards")
        # Where nothing of the attacker's was sealed there is nothing to compare with.
        order = Precedence.FIRST
        if shards:
            order = compare(self.made.proof.path, proof, trust=trust).order
        return {
            "thief_shards": shards,
            "thief_accepted": verdict.outcome is Outcome.ACCEPTED,
            "thief_headline": verdict.headline(),
            "owner_first": order is Precedence.FIRST,
        }

    def thief_epochs(self) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
        """Passes over the owner's data, in an order of the attacker's own."""
        job = self.job
        order = Order(tagged("lab/thief", u64(job.seed)), job.samples, job.batch)
        numbers = itertools.count()

        def epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            first = next(numbers) * job.pass_steps
            steps = [order.batch(step) for step in range(first, first + job.pass_steps)]
            for batch in job.batches(steps):
                job.lab_task.train_step(model, optimizer, batch)

        return epoch

    @cached_property
    def _claimant(self) -> Claimant:
        return Claimant(self.made.proof.path, {self.made.issuer.public_key: "issuer"})

    @cached_property
    def _marks(self) -> dict[int, Mark]:
        return {derived.shard: derived.mark for derived in self._claimant.marks()[0]}


def of_settings(settings: Mapping[str, Any], folder: Path, victim: Victim | None) -> Victim:
    """The given victim, or one that is trained under plain settings."""
    if victim is not None:
        return victim
    return Victim.train(Job.of(settings), setting_of(settings), folder / "owner")


def thief_setting(settings: Mapping[str, Any], victim: Victim) -> Setting:
    """How the attacker's marks are made: `thief_scheme`, `thief_bits`, `thief_strength`.

    By default RIGA, as in the paper, and as many bits as the owner's.
    """
    return Setting(
        scheme=settings.get("thief_scheme", "riga"),
        bits=settings.get("thief_bits", victim.setting.bits),
        strength=settings.get("thief_strength"),
    )


def summary(victim: Victim, stages: Sequence[Stage]) -> dict[str, Any]:
    """What an attack took and left, next to what the owner's training took."""
    seconds = sum(stage.seconds for stage in stages)
    share = len(stages) / victim.shards if victim.shards else 0.0
    owner = [stage.owner.eta for stage in stages]
    thief = [stage.thief.eta for stage in stages]
    return {
        "compiled": victim.job.how_compiled(),
        "honest_seconds": victim.seconds,
        "honest_accuracy": victim.made.accuracy,
        "honest_accuracies": list(victim.made.accuracies),
        "honest_shards": victim.shards,
        "bits": victim.setting.bits,
        "scheme": victim.setting.scheme,
        "attack_seconds": seconds,
        "attacked_shards": len(stages),
        # Fewer shards than there are cost less: the honest time of as many is what compares.
        "cost_ratio": seconds / (share * victim.seconds) if share else 0.0,
        "owner_eta_mean": sum(owner) / len(owner) if owner else 0.0,
        "owner_eta_least": min(owner, default=0.0),
        "thief_eta_mean": sum(thief) / len(thief) if thief else 0.0,
        "thief_eta_least": min(thief, default=0.0),
        "accuracy_last": stages[-1].accuracy if stages else 0.0,
        "accuracy_mean": sum(s.accuracy for s in stages) / len(stages) if stages else 0.0,
        "stages": [stage.row() for stage in stages],
    }
