"""The paper's multi-shard takeover: shard after shard, until one mark is gone and another is there.

From every checkpoint W_x the attacker, who holds the training data and none of the owner's keys,
fine-tunes all weights by the loss of the paper's equations 7 and 8:

    l_ofa  = l_w + λ_Λ′ · l_Λ′ + λ_blind · l_pert
    l_pert = Σ over tensors of the mean of (w − w⁽⁰⁾)²

with λ_blind = 0.1; w⁽⁰⁾ are the weights of W_x. It goes on until its own mark has settled and the
owner's reads below the rate that verifiers ask for, or for so many epochs. The attacker cannot read
the owner's mark; who measures can, and it stops when it would if it could. Each of the attacker's
marks follows from the checkpoint that its shard before ended with.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polo.embedding.embedder import Embedder
from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.protocol.digest import tagged
from polo.watermark.mark import carrier_of
from polo.weights.checkpoint import checkpoint_of
from polo.weights.hashing import commit
from polo.weights.loading import load_into
from polo_lab.attacks.ofa import RATE
from polo_lab.attacks.victim import Stage, Victim, of_settings, summary, thief_setting
from polo_lab.baselines.job import Clock, room
from polo_lab.schemes.training import Setting

NAME = "takeover"
BLIND = 0.1
SHARDS = 3
"""Shards that the paper's figure shows."""


@dataclass(frozen=True)
class Attack:
    """How the attacker goes about it.

    Attributes:
        setting: How its marks are made.
        blind: λ_blind.
        rate: Its learning rate, as a share of the owner's highest.
        shards: Checkpoints to attack, from the first; 0 for all.
        most: Most epochs for each.
    """

    setting: Setting
    blind: float = BLIND
    rate: float = RATE
    shards: int = SHARDS
    most: int = 20


class Pull:
    """Adds the gradient of λ · l_pert: pulls weights back to where they were.

    Args:
        parameters: The weights; where they are now is where they are pulled to.
        weight: λ.
    """

    def __init__(self, parameters: list[torch.Tensor], weight: float) -> None:
        self._parameters = parameters
        self._starts = [parameter.detach().clone() for parameter in parameters]
        self._scales = [2 * weight / max(1, parameter.numel()) for parameter in parameters]

    @torch.no_grad()
    def add_gradient(self) -> None:
        """Add it to the gradients; nothing in here waits for the device."""
        pulls = torch._foreach_sub(self._parameters, self._starts)
        torch._foreach_mul_(pulls, self._scales)
        for parameter, pull in zip(self._parameters, pulls, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(pull)

    def loss(self) -> float:
        """l_pert as it is now."""
        pairs = zip(self._parameters, self._starts, strict=True)
        return sum(float((now.detach() - then).square().mean()) for now, then in pairs)


def attack(victim: Victim, how: Attack, folder: Path) -> dict[str, Any]:
    """Attack a chain; returns plain figures, with a point of the curve for every epoch.

    Args:
        victim: The owner's chain.
        how: How to go about it.
        folder: Where files go that are needed in between.
    """
    taker = _Taker(victim, how)
    attacked = min(how.shards or victim.shards, victim.shards)
    with victim.job.settled():
        stages = [taker.stage(shard) for shard in range(1, attacked + 1)]
    return {
        "attack": NAME,
        "blind": how.blind,
        "rate": how.rate,
        "most": how.most,
        "thief_bits": how.setting.bits,
        "thief_scheme": how.setting.scheme,
        **summary(victim, stages),
        "erased": [taker.erased(stage) for stage in stages],
        "curve": taker.curve,
        "claim": victim.claim(taker.model, folder),
    }


class _Taker:
    """Takes one checkpoint after the other."""

    def __init__(self, victim: Victim, how: Attack) -> None:
        self._victim = victim
        self._how = how
        self.model = copy.deepcopy(victim.made.model)
        self._terms = how.setting.terms(victim.job.lab_task)
        self._carrier = carrier_of(self._terms, checkpoint_of(self.model).layout)
        self._epoch = victim.thief_epochs()
        self._previous = b""
        self.curve: list[dict[str, Any]] = []

    def erased(self, stage: Stage) -> bool:
        """Whether the owner's mark reads below what verifiers ask for."""
        return not stage.owner.reaches(self._victim.made.terms.thresholds.verify)

    def stage(self, shard: int) -> Stage:
        """What comes of a checkpoint."""
        victim, model, job = self._victim, self.model, self._victim.job
        load_into(model, victim.checkpoint(shard))
        accuracy, before = victim.accuracy(shard), victim.reading(shard, model)
        clock = Clock(job.where)
        with clock.phase(NAME):
            seed = tagged("lab/takeover", self._previous)
            marking = Embedder(self._terms, self._carrier, seed, parameters_of(model))
            optimizer = self._optimizer()
        hook = self._hooked(optimizer, marking)
        try:
            for epoch in range(1, self._how.most + 1):
                with clock.phase(NAME):
                    self._epoch(model, optimizer)
                    thief = marking.read()
                owner, after = victim.reading(shard, model), job.evaluate(model)
                own = thief.reaches(self._terms.thresholds.embed)
                stage = Stage(shard, clock.total(), after, accuracy, owner, before, thief, own)
                self.curve.append({"epoch": epoch, **stage.row()})
                if own and self.erased(stage):
                    break
        finally:
            hook.detach()
        self._previous = commit(checkpoint_of(model)).root
        return stage

    def _optimizer(self) -> torch.optim.Optimizer:
        return self._victim.job.tuner(self.model, self._how.rate, decay=0.0)

    def _hooked(self, optimizer: torch.optim.Optimizer, marking: Embedder) -> StepHook:
        pull = Pull([p for p in self.model.parameters() if p.requires_grad], self._how.blind)

        def before(scale: torch.Tensor | float) -> None:
            marking.add_gradient(scale)
            pull.add_gradient()

        return StepHook(optimizer, before, lambda: None)


def run(
    settings: Mapping[str, Any], folder: Path | None = None, victim: Victim | None = None
) -> dict[str, Any]:
    """Train an owner's chain and take it over, under plain settings.

    Args:
        settings: Those of a job; `scheme`, `bits`, `load`, `strength` of the owner's marks;
            `thief_scheme`, `thief_bits`, `thief_strength`; `blind`, `rate_share`, `shards`, `most`.
        folder: Where to write; by default nothing is left.
        victim: An owner's chain to attack instead of a new one.
    """
    with room(folder) as own:
        owner = of_settings(settings, own, victim)
        how = Attack(
            thief_setting(settings, owner),
            blind=settings.get("blind", BLIND),
            rate=settings.get("rate_share", RATE),
            shards=settings.get("shards", SHARDS),
            most=settings.get("most", 20),
        )
        return attack(owner, how, own / NAME)
