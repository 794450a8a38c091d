"""The paper's *Weight Manipulation Attack* (WMA): marks pressed into checkpoints without training.

The attacker holds all checkpoints, no training data, and none of the owner's keys. In each
checkpoint W_x the weights that its own mark sits in are overwritten with values that follow from
mark and key, in two ways:

- `overwrite`, as in the paper: the old values are thrown away. The new ones are noise of the same
  size, moved as little as the mark asks for.
- `least`: the old values are moved as little as the mark asks for. The paper does not have it; it
  costs less accuracy, and is what an attacker would do.

Where the closed form of the smallest edit leaves bits, as RIGA's does, the attacker descends on the
mark's own loss, over the mark's weights alone, and tries again. No sample is needed for that.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polo.embedding.forging import forge
from polo.embedding.placement import Placement, parameters_of
from polo.embedding.presses import press as press_of
from polo.errors import ChainError, PoloError
from polo.protocol.detection import Reading
from polo.protocol.records import Terms
from polo.watermark.mark import Mark, carrier_of
from polo.watermark.reading import read, values_of
from polo.watermark.schemes import scheme
from polo.weights.checkpoint import checkpoint_of
from polo.weights.loading import load_into
from polo_lab.attacks.manipulation import press
from polo_lab.attacks.victim import Stage, Victim, of_settings, summary, thief_setting
from polo_lab.baselines.job import Clock, room
from polo_lab.schemes.training import Setting

NAME = "wma"
WAYS = ("overwrite", "least")

_TRIES = 8
_STEPS = 50
_RATE = 0.02
"""Of the descent, as a share of the weights' size."""


@dataclass(frozen=True)
class Attack:
    """How the attacker goes about it.

    Attributes:
        setting: How its marks are made.
        way: One of `WAYS`.
        shards: Checkpoints to attack, from the first; 0 for all.
    """

    setting: Setting
    way: str = "overwrite"
    shards: int = 0


def attack(victim: Victim, how: Attack, folder: Path) -> dict[str, Any]:
    """Attack a chain; returns plain figures.

    Args:
        victim: The owner's chain.
        how: How to go about it.
        folder: Where the attacker's proof goes; it must not exist yet.
    """
    if how.way not in WAYS:
        raise PoloError(f"no way {how.way!r}", advice=f"Choose from {', '.join(WAYS)}.")
    terms, store = how.setting.terms(victim.job.lab_task), folder / "proof"
    editor = _Editor(victim, terms, anew=how.way == "overwrite")
    problem = ""
    try:
        press(
            editor.model,
            terms,
            store=store,
            issuer=victim.made.issuer,
            shards=min(how.shards or victim.shards, victim.shards),
            evaluate=editor.done,
            before=editor.begin,
        )
    except ChainError as error:
        # A mark that cannot be pressed ends the chain; what was done up to there counts.
        problem = str(error)
    return {
        "attack": NAME,
        "problem": problem,
        "way": how.way,
        "thief_bits": how.setting.bits,
        "thief_scheme": how.setting.scheme,
        **summary(victim, editor.stages),
        **victim.judged(store),
        "claim": victim.claim(editor.model, folder),
    }


class _Editor:
    """Puts each checkpoint in the way of the next mark, and looks at what came of it."""

    def __init__(self, victim: Victim, terms: Terms, *, anew: bool) -> None:
        self._victim = victim
        self._terms = terms
        self._anew = anew
        self.model = copy.deepcopy(victim.made.model)
        self._carrier = carrier_of(terms, checkpoint_of(self.model).layout)
        self._random = torch.Generator().manual_seed(victim.job.seed)
        self.stages: list[Stage] = []

    def begin(self, shard: int, mark: Mark) -> None:
        """A mark is about to be pressed."""
        victim, model = self._victim, self.model
        load_into(model, victim.checkpoint(shard))
        self._before = victim.reading(shard, model), victim.accuracy(shard)
        self._shard, self._mark = shard, mark
        self._clock = Clock(victim.job.where)
        self._timing = self._clock.phase(NAME)
        self._timing.__enter__()
        placement = Placement(self._carrier, mark.blocks, parameters_of(model))
        values = placement.gather(torch.float64).cpu()
        placement.write(pressed(mark, self._terms, self._noise(values) if self._anew else values))

    def done(self) -> float:
        """The mark is pressed: measures the model."""
        self._timing.__exit__(None, None, None)
        victim, model, shard = self._victim, self.model, self._shard
        owner, accuracy = self._before
        values = values_of(self._mark, self._carrier, checkpoint_of(model))
        thief: Reading = read(self._mark, values)
        after = victim.job.evaluate(model)
        left = victim.reading(shard, model)
        stage = Stage(shard, self._clock.total(), after, accuracy, left, owner, thief)
        self.stages.append(stage)
        return after

    def _noise(self, values: torch.Tensor) -> torch.Tensor:
        """Noise of the same size, block by block."""
        sizes = values.square().mean(dim=1, keepdim=True).sqrt()
        return sizes * torch.randn(values.shape, generator=self._random, dtype=torch.float64)


def pressed(mark: Mark, terms: Terms, values: torch.Tensor) -> torch.Tensor:
    """Weights with a mark in them, made without any data.

    Args:
        mark: The mark.
        terms: Its terms.
        values: Its weights, as blocks × weights, double precision on the CPU.
    """
    made = forge(mark, terms, values)
    for _ in range(_TRIES):
        if made.reading.reaches(terms.thresholds.embed):
            break
        made = forge(mark, terms, _descended(mark, terms, made.values))
    return made.values


def _descended(mark: Mark, terms: Terms, values: torch.Tensor) -> torch.Tensor:
    """Weights a little down the mark's own loss, in the groups that have wrong bits."""
    found = scheme(mark.scheme.name).matches(mark, values.numpy(), range(mark.groups))
    wrong = torch.from_numpy(~found.all(axis=1)).repeat_interleave(len(values) // mark.groups)
    pressing = press_of(mark, terms, torch.device("cpu"))
    moved = torch.nn.Parameter(values.float())
    optimizer = torch.optim.Adam([moved], lr=_RATE * float(values.square().mean().sqrt()))
    for _ in range(_STEPS):
        moved.grad = pressing.gradient(moved.detach()) * wrong[:, None]
        optimizer.step()
    return moved.detach().double()


def run(
    settings: Mapping[str, Any], folder: Path | None = None, victim: Victim | None = None
) -> dict[str, Any]:
    """Train an owner's chain and attack it, under plain settings.

    Args:
        settings: Those of a job; `scheme`, `bits`, `load`, `strength` of the owner's marks;
            `thief_scheme`, `thief_bits`, `thief_strength`; `way`, `shards`.
        folder: Where to write; by default nothing is left.
        victim: An owner's chain to attack instead of a new one.
    """
    with room(folder) as own:
        owner = of_settings(settings, own, victim)
        how = Attack(
            thief_setting(settings, owner),
            way=settings.get("way", "overwrite"),
            shards=settings.get("shards", 0),
        )
        return attack(owner, how, own / NAME)
