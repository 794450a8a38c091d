"""Shard inflation: marks are pressed into a finished model, over and over, without training."""

from pathlib import Path

import torch

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import copied
from polo_lab.attacks.effort.walking import scatter, walk
from polo_lab.attacks.state import State
from polo_lab.effort.case import Attempt, Case


class Inflation:
    """Closed-form marks on a stolen model, under a made-up record of training.

    Args:
        start: `stolen` begins with the stolen weights; `drawn` with the start that the terms ask
            for, and goes to the stolen weights in the first shard.
        rough: Noise outside the marks in every shard, relative to a tensor's root mean square, to
            look like movement.
    """

    knowledge = "a finished model of the task"
    data = "none"
    budget = "no gradients"

    def __init__(self, start: str = "drawn", rough: float = 0.0) -> None:
        self._start = start
        self._rough = rough
        self.name = f"inflation from a {start} start" + (" with noise" if rough else "")
        self.description = (
            "presses every mark into the stolen weights by the closed-form edit"
            + (", adds noise to look like movement," if rough else "")
            + " and makes up the record"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        stolen = case.victim.state
        forgery = Forgery(case, folder)
        forgery.begin(stolen if self._start == "stolen" else None)
        generator = torch.Generator().manual_seed(case.seed)
        target: State = stolen
        for _ in range(forgery.shards):
            model = copied(target)
            scatter(model, self._rough, generator)
            walk(forgery, model, rough=0.002)
            target = forgery.seal().model
        return forgery.finish()
