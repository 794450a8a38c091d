"""The paper's *Overhaul Fine-tuning Attack* (OFA): every checkpoint of a chain, fine-tuned.

The attacker holds all checkpoints and the training data, and none of the owner's keys. Each
checkpoint W_x is trained on for a few rounds (epochs), all weights, at a tenth of the owner's
learning rate, with a mark of the attacker's own chain pressed into it, by RIGA as in the paper:
five rounds for marks of 2048 bits, three for smaller ones. The attacker's marks follow from its own
checkpoints, through the real prover, so that the outcome is a proof that verifies or does not.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polo.protocol.detection import Reading
from polo.prover import Prover
from polo.weights.loading import load_into
from polo_lab.attacks.overwriting import proving
from polo_lab.attacks.victim import Stage, Victim, of_settings, summary, thief_setting
from polo_lab.baselines.job import Clock, room
from polo_lab.schemes.training import Setting

NAME = "ofa"
RATE = 0.1
"""The attacker's learning rate, as a share of the owner's."""

LARGE = 2048
"""Bits of a mark from which five rounds are spent."""


def rounds_for(bits: int) -> int:
    """Rounds of fine-tuning for marks of a size.

    >>> rounds_for(2048), rounds_for(1024), rounds_for(512)
    (5, 3, 3)
    """
    return 5 if bits >= LARGE else 3


@dataclass(frozen=True)
class Attack:
    """How the attacker goes about it.

    Attributes:
        setting: How its marks are made.
        rounds: Rounds of fine-tuning for each checkpoint; 0 for the paper's.
        rate: Its learning rate, as a share of the owner's highest.
        shards: Checkpoints to attack, from the first; 0 for all.
    """

    setting: Setting
    rounds: int = 0
    rate: float = RATE
    shards: int = 0


def attack(victim: Victim, how: Attack, folder: Path) -> dict[str, Any]:
    """Attack a chain; returns plain figures.

    Args:
        victim: The owner's chain.
        how: How to go about it.
        folder: Where the attacker's proof goes; it must not exist yet.
    """
    job, rounds = victim.job, how.rounds or rounds_for(how.setting.bits)
    model = copy.deepcopy(victim.made.model)
    optimizer = job.tuner(model, how.rate)
    store, terms = folder / "proof", how.setting.terms(job.lab_task)
    issuer = victim.made.issuer
    with (
        job.settled(),
        proving(model, optimizer, job.lab_task, terms, store=store, issuer=issuer) as prover,
    ):
        tuner = _Tuner(victim, model, optimizer, prover, rounds)
        attacked = min(how.shards or victim.shards, victim.shards)
        stages = [tuner.stage(shard) for shard in range(1, attacked + 1)]
        prover.finish(seal=False)
    return {
        "attack": NAME,
        "rounds": rounds,
        "rate": how.rate,
        "thief_bits": how.setting.bits,
        "thief_scheme": how.setting.scheme,
        **summary(victim, stages),
        **victim.judged(store),
        "claim": victim.claim(model, folder),
    }


class _Tuner:
    """Fine-tunes one checkpoint after the other."""

    def __init__(
        self,
        victim: Victim,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        prover: Prover,
        rounds: int,
    ) -> None:
        self._victim = victim
        self._model = model
        self._optimizer = optimizer
        self._prover = prover
        self._rounds = rounds
        self._epoch = victim.thief_epochs()

    def stage(self, shard: int) -> Stage:
        """What comes of a checkpoint."""
        victim, model, clock = self._victim, self._model, Clock(self._victim.job.where)
        load_into(model, victim.checkpoint(shard))
        before = victim.reading(shard, model)
        self._optimizer.state.clear()
        with clock.phase(NAME):
            for _ in range(self._rounds):
                self._epoch(model, self._optimizer)
            progress = self._prover.end_epoch()
        assert progress is not None
        sealed = progress.sealed
        thief = Reading(progress.reading.bits, sealed.matches) if sealed else progress.reading
        return Stage(
            shard=shard,
            seconds=clock.total(),
            accuracy=victim.job.evaluate(model),
            accuracy_before=victim.accuracy(shard),
            owner=victim.reading(shard, model),
            owner_before=before,
            thief=thief,
            sealed=sealed is not None,
        )


def run(
    settings: Mapping[str, Any], folder: Path | None = None, victim: Victim | None = None
) -> dict[str, Any]:
    """Train an owner's chain and attack it, under plain settings.

    Args:
        settings: Those of a job; `scheme`, `bits`, `load`, `strength` of the owner's marks;
            `thief_scheme`, `thief_bits`, `thief_strength`; `rounds`, `rate_share`, `shards`.
        folder: Where to write; by default nothing is left.
        victim: An owner's chain to attack instead of a new one.
    """
    with room(folder) as own:
        owner = of_settings(settings, own, victim)
        how = Attack(
            thief_setting(settings, owner),
            rounds=settings.get("rounds", 0),
            rate=settings.get("rate_share", RATE),
            shards=settings.get("shards", 0),
        )
        return attack(owner, how, own / NAME)
