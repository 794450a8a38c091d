"""Tiny subset: a few samples, declared as many.

Copies under different salts cost the same steps as different samples would, unless the forger adds
up what is alike: a pass for each distinct sample instead of one for each row. Copies that differ in
their last bits only are not told by their hashes; what they are off by looks like rounding. And
copies with other labels teach other things, by the same pass through the model.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.nn import functional

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.machines import foreign
from polo_lab.attacks.effort.walking import rows_meet
from polo_lab.effort.case import Attempt, Case


class TinySubset:
    """Training on a few samples that are repeated.

    Args:
        distinct: How many there are.
        varied: Whether copies differ in their last bits.
        relabelled: Part of the copies that get a label of their own.
    """

    knowledge = "the task"
    data = "a few samples of the task"
    budget = "every step, for as few samples as the model allows"

    def __init__(self, distinct: int = 16, *, varied: bool = True, relabelled: float = 0.0) -> None:
        self._distinct = distinct
        self._varied = varied
        self._relabelled = relabelled
        kind = "relabelled" if relabelled else "varied" if varied else "plain"
        self.name = f"tiny subset of {distinct}, {kind} copies"
        self.description = (
            f"commits to {distinct} samples, repeated"
            + (" with their last bits changed" if varied else "")
            + (f", {relabelled:.0%} of them under other labels" if relabelled else "")
            + ", and passes each of them through the model once per step, as often as it counts"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        which = np.arange(case.samples) % min(self._distinct, case.samples)
        chosen = _spread(case, which.max() + 1)
        columns = {name: values[chosen[which]] for name, values in case.columns.items()}
        if self._varied:
            _vary(columns, len(chosen))
        if self._relabelled:
            _relabel(columns["label"], self._relabelled, case.seed)
        who = case.enrol(f"attacker with {self.name}", columns)
        forgery = Forgery(case, folder, who=who, machine=foreign(case.device))
        model = forgery.engine.model
        if not rows_meet(model):
            step = _Shared()

            def once(indices: ArrayLike) -> dict[str, torch.Tensor]:
                found, of = np.unique(which[np.asarray(indices)], return_inverse=True)
                step.of = torch.from_numpy(of)
                step.labels = who.source.batch(indices)["label"]
                return who.source.batch(found)

            forgery.batch = once
            forgery.task.use(step)
        forgery.begin()
        for _ in range(forgery.shards):
            forgery.train(forgery.segments)
            forgery.seal()
        meet = rows_meet(model)
        return forgery.finish("rows meet in the model" if meet else "", possible=not meet)


class _Shared:
    """A step on samples of which each stands for several, with the labels of all of them."""

    def __init__(self) -> None:
        self.of = torch.zeros(0, dtype=torch.int64)
        self.labels = torch.zeros(0, dtype=torch.int64)

    def __call__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        model.train()
        optimizer.zero_grad()
        inputs = next(value for name, value in sorted(batch.items()) if name != "label")
        scores = model(inputs)[self.of]
        functional.cross_entropy(scores.flatten(0, -2), self.labels.flatten()).backward()
        optimizer.step()


def _relabel(labels: np.ndarray, share: float, seed: int) -> None:
    """Give part of the samples a label of others."""
    drawing = np.random.default_rng(seed)
    changed = drawing.random(len(labels)) < share
    labels[changed] = labels[drawing.permutation(len(labels))][changed]


def _spread(case: Case, count: int) -> np.ndarray:
    """So many samples with as many labels among them as there are."""
    labels = case.columns["label"].reshape(case.samples, -1)[:, 0]
    drawn = np.random.default_rng(case.seed).permutation(case.samples)
    rank = np.zeros(case.samples, dtype=np.int64)
    for label in np.unique(labels):
        own = drawn[labels[drawn] == label]
        rank[own] = np.arange(len(own))
    return np.argsort(rank, kind="stable")[:count]


def _vary(columns: dict[str, np.ndarray], first: int) -> None:
    """Change last bits where there are any to spare."""
    for name, values in columns.items():
        if np.issubdtype(values.dtype, np.floating):
            drawn = np.random.default_rng(first).integers(-2, 3, values.shape)
            varied = values + drawn * np.spacing(np.abs(values) + 1e-3)
            # Where nobody notices: within what the samples themselves lie in.
            columns[name] = varied.clip(values.min(), values.max()).astype(values.dtype)
