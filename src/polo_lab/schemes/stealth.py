"""Can somebody who sees only weights tell marked blocks from unmarked ones?

Two classifiers try, a linear one and a small network, on what a distribution shows of itself:
quantiles, a histogram and moments. Both are judged on blocks that they did not learn from. What a
classifier of this kind finds is visible; what it does not find may still be visible to another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from polo.protocol.carrier import Carrier
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint
from polo_lab.experiments.statistics import CONFIDENCE, clopper_pearson

Blocks = NDArray[np.floating[Any]]

FEWEST = 10
"""Blocks of each kind below which nothing can be learnt."""

_FOLDS = 5
_HIDDEN = (0, 16)
"""Hidden units of the two classifiers."""

_STEPS = 150
_RATE = 0.01
_DECAY = 0.3
_QUANTILES = 33
_EDGES = np.linspace(-3, 3, 17)


@dataclass(frozen=True)
class Stealth:
    """How well the better of two classifiers does, where guessing is right half of the time.

    Attributes:
        accuracy: Part of the blocks that it judged rightly.
        low: Lower end of the interval of that probability; where it is above one half, marks show.
        high: Upper end. The interval allows for the choice between two classifiers.
        blocks: Blocks judged, half of them marked.
    """

    accuracy: float
    low: float
    high: float
    blocks: int


def detectability(
    marked: Blocks,
    unmarked: Blocks,
    *,
    seed: int,
    runs: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Stealth:
    """Try to tell marked blocks from unmarked ones.

    Of both kinds equally many are taken. Blocks of tensors of different size of weights should be
    scaled alike first, see `scaled_blocks`: otherwise tensors are told apart, and not marks.

    Args:
        marked: Blocks × weights.
        unmarked: Blocks × weights, as many weights.
        seed: What is drawn is drawn from it.
        runs: For every block, marked and unmarked, the run it is from: a run is then learnt from
            or judged as a whole. Else blocks are drawn.
    """
    count = min(len(marked), len(unmarked))
    if count < FEWEST:
        raise ValueError(f"{count} blocks of a kind; {FEWEST} are the fewest that show anything")
    random = np.random.default_rng(seed)
    picks = [random.permutation(len(kind))[:count] for kind in (marked, unmarked)]
    features = _features(np.concatenate([marked[picks[0]], unmarked[picks[1]]]))
    labels = np.repeat([1, 0], count)
    fold = (
        np.concatenate([random.permutation(count), random.permutation(count)]) % _FOLDS
        if runs is None
        else np.concatenate([np.asarray(r)[p] for r, p in zip(runs, picks, strict=True)])
    )
    hits = max(
        sum(_hits(kind, seed, features, labels, fold == held) for held in np.unique(fold))
        for kind in _HIDDEN
    )
    low, high = clopper_pearson(hits, 2 * count, 1 - (1 - CONFIDENCE) / 2)
    return Stealth(hits / (2 * count), low, high, 2 * count)


def scaled_blocks(carrier: Carrier, checkpoint: Checkpoint, blocks: Iterable[int]) -> Blocks:
    """Blocks of a checkpoint, each divided by its tensor's root mean square."""
    sizes: dict[int, float] = {}
    rows = []
    for where in map(carrier.locate, blocks):
        dtype = carrier.layout.tensors[where.tensor].dtype
        stop = carrier.layout.tensors[where.tensor].size
        values = dtypes.to_float(checkpoint.read(where.tensor, 0, stop), dtype).astype(np.float64)
        sizes.setdefault(where.tensor, float(np.sqrt(np.mean(values**2))) or 1.0)
        row = values[where.element : where.element + carrier.block]
        rows.append(row / sizes[where.tensor])
    return np.stack(rows)


def _hits(
    hidden: int, seed: int, features: Blocks, labels: NDArray[np.int64], held: NDArray[np.bool_]
) -> int:
    """Blocks of a fold that a classifier judges rightly which learnt from the other folds."""
    mean, spread = features[~held].mean(0), features[~held].std(0)
    scaled = torch.from_numpy((features - mean) / np.where(spread > 0, spread, 1)).float()
    known = torch.from_numpy(~held)
    wanted = torch.from_numpy(labels).float()
    classifier = _trained(hidden, seed, scaled[known], wanted[known])
    with torch.no_grad():
        guesses = classifier(scaled[~known]).squeeze(1) > 0
    return int((guesses == (wanted[~known] > 0)).sum())


def _trained(hidden: int, seed: int, inputs: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """A classifier without or with hidden units, after a fixed number of steps."""
    width = inputs.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = (
            nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))
            if hidden
            else nn.Linear(width, 1)
        )
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=_RATE, weight_decay=_DECAY)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(
            classifier(inputs).squeeze(1), labels
        ).backward()
        optimizer.step()
    return classifier


def _features(values: Blocks) -> Blocks:
    """What each block's distribution shows: quantiles, a histogram and moments."""
    doubles = values.astype(np.float64)
    size = np.sqrt(np.mean(doubles**2)) or 1.0
    ordered = np.sort(doubles / size, axis=1)
    spread = np.maximum(ordered.std(axis=1, keepdims=True), 1e-12)
    shape = (ordered - ordered.mean(axis=1, keepdims=True)) / spread
    moments = [
        ordered.mean(axis=1),
        np.log(spread[:, 0]),
        # Too large in one model, too small in the next: both are unlike the usual.
        np.abs(np.log(spread[:, 0])),
        (shape**3).mean(axis=1),
        np.log((shape**4).mean(axis=1) + 1e-12),
        np.abs(shape).mean(axis=1),
        np.abs(shape).max(axis=1),
    ]
    quantiles = np.quantile(ordered, np.linspace(0, 1, _QUANTILES), axis=1)
    return np.column_stack([quantiles.T, _histogram(shape), *moments])


def _histogram(shape: Blocks) -> Blocks:
    bins = np.digitize(shape, _EDGES)
    counts = [(bins == at).mean(axis=1) for at in range(len(_EDGES) + 1)]
    return np.column_stack(counts)
