"""Interpolation: a path of models from the drawn start to a stolen one, better at every point."""

import math
from pathlib import Path

import torch

from polo.checks import counted
from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import between, copied
from polo_lab.attacks.effort.walking import reestimate, scatter, walk
from polo_lab.attacks.state import State
from polo_lab.effort.case import Attempt, Case

KINDS = ("straight", "curved", "noisy")
DETOUR = 0.35
"""How far a curved path swings out, relative to the way."""

ROUGH = 0.03
EARLIER = 0.7
"""Power of the share of the way: below 1 most of it is gone early, as in training."""


class Interpolation:
    """Points of a path to the stolen weights, with marks pressed in.

    Args:
        kind: `straight`; `curved`, which swings out along a few random waves; or `noisy`.
        trained: Shards that are trained in full before the path begins, so that it looks like
            training where heuristics look the closest.
    """

    knowledge = "a finished model of the task"
    data = "unlabelled inputs, for batch-norm statistics"
    budget = "no gradients"

    def __init__(self, kind: str = "straight", trained: int = 0) -> None:
        self._kind = kind
        self._trained = trained
        self.name = f"interpolation, {kind}"
        begin = "the drawn start"
        if trained:
            self.name += f", after {counted(trained, 'real shard')}"
            self.data, self.budget = "the task's own", counted(trained, "shard")
            begin = f"{counted(trained, 'shard')} of real training"
        self.description = (
            f"takes points of a {kind} path from {begin} to the stolen weights for "
            "checkpoints, with statistics estimated anew, and makes up the record"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        stolen = case.victim.state
        forgery = Forgery(case, folder)
        forgery.begin()
        for _ in range(self._trained):
            forgery.train(forgery.segments)
            forgery.seal()
        origin, left = forgery.now.model, forgery.shards - self._trained
        waves = _waves(origin, stolen, case.seed)
        generator = torch.Generator().manual_seed(case.seed)
        for number in range(1, left + 1):
            share = (number / left) ** EARLIER
            model = between(origin, stolen, share)
            if self._kind == "curved":
                _swing(model, waves, share)
            scatter(model, ROUGH if self._kind == "noisy" else 0.0, generator)
            walk(forgery, reestimate(case, model), rough=0.002)
            forgery.seal()
        return forgery.finish()


def _waves(origin: State, stolen: State, seed: int) -> list[dict[str, torch.Tensor]]:
    """Directions to swing out in: two of random signs, as large as the way in every tensor."""
    generator = torch.Generator().manual_seed(seed)
    waves = []
    for _ in range(2):
        wave = {}
        for name, tensor in copied(origin).items():
            if tensor.is_floating_point() and tensor.dim() > 1:
                drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                size = (stolen[name].double() - tensor.double()).norm() / drawn.norm()
                wave[name] = drawn * size * DETOUR
        waves.append(wave)
    return waves


@torch.no_grad()
def _swing(model: State, waves: list[dict[str, torch.Tensor]], share: float) -> None:
    done: set[int] = set()
    for name, tensor in model.items():
        if name in waves[0] and tensor.data_ptr() not in done:
            done.add(tensor.data_ptr())
            for at, wave in enumerate(waves, start=1):
                tensor += (math.sin(at * math.pi * share) * wave[name]).to(tensor)
