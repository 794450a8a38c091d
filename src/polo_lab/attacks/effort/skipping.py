"""Skipping: part of the segments are not trained, or trained cheaply; all others are."""

from pathlib import Path

import numpy as np
import torch

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.snapshot import Snapshot, copied
from polo_lab.attacks.effort.walking import count, plausible_rest
from polo_lab.effort.case import Attempt, Case

CHEAPER = 8
"""A cheap step takes a batch that is smaller by this."""


class Skipping:
    """Real training with some segments left out.

    Args:
        share: Part of the segments that are not trained as declared.
        how: `ahead` goes on in the direction of the last segment; `small` trains on small batches.
    """

    knowledge = "the task"
    data = "the task's own"

    def __init__(self, share: float, how: str = "ahead") -> None:
        self._share = share
        self._how = how
        self.name = f"skipping {share:.0%}, {how}"
        small = ", and small batches in the others" if how == "small" else ""
        self.budget = f"{1 - share:.0%} of the steps{small}"
        what = "goes on straight ahead" if how == "ahead" else "takes small batches"
        self.description = f"trains all segments but {share:.0%} of them, in which it {what}"

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        forgery = Forgery(case, folder)
        drawing = np.random.default_rng(case.seed)
        total = forgery.shards * forgery.segments
        skipped = max(1, round(self._share * total))
        # The first segment is always run again, so nobody would skip it.
        chosen = set((1 + drawing.permutation(total - 1)[:skipped]).tolist())
        forgery.begin()
        for shard in range(forgery.shards):
            previous: Snapshot | None = None
            for segment in range(forgery.segments):
                before = forgery.now
                if shard * forgery.segments + segment not in chosen:
                    forgery.train()
                elif self._how == "small" or previous is None:
                    _small(forgery)
                else:
                    forgery.jump(_ahead(forgery, previous, before))
                previous = before
            forgery.seal()
        return forgery.finish(f"{skipped} of {total} segments")


def _small(forgery: Forgery) -> None:
    whole, part = forgery.batch, max(2, forgery.recipe.batch // CHEAPER)
    forgery.batch = lambda indices: whole(np.asarray(indices)[:part])
    forgery.train_and_edit(lambda now: now)
    forgery.batch = whole


@torch.no_grad()
def _ahead(forgery: Forgery, previous: Snapshot, now: Snapshot) -> Snapshot:
    """Where the weights would be if they went on as in the segment before."""
    model = copied(now.model)
    done: set[int] = set()
    for name, tensor in model.items():
        if tensor.is_floating_point() and tensor.data_ptr() not in done:
            done.add(tensor.data_ptr())
            tensor += now.model[name] - previous.model[name]
    count(model, now.model, len(forgery.span))
    steps = (forgery.shard - 1) * forgery.steps + forgery.span.stop
    rest = dict(now.rest) or plausible_rest(forgery.engine, now.model, model, steps)
    rest = {
        name: torch.full_like(value, float(steps)) if name.startswith("step/") else value
        for name, value in rest.items()
    }
    return Snapshot(model, rest)
