"""Were the first weights drawn as the task draws them? A test after Kolmogorov and Smirnov.

Jia et al. ask it of the first checkpoint, so that nobody presents a stolen model as a start. Every
tensor is compared with the same tensor of models that the verifier draws itself; what is the same
in all of those (ones, zeros) must be the same here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polo.evidence.replay.engine import quiet_generators
from polo.protocol.layout import CARRIER_DTYPES
from polo.tasks import Task
from polo.weights import dtypes
from polo.weights.checkpoint import Checkpoint, checkpoint_of

DRAWS = 4
"""Models that the verifier draws."""

LUCK = 0.01
"""Chance that an honest start is refused, all tensors together."""

_MOST = 2**16
"""Values of a tensor that are compared, at most."""


@dataclass(frozen=True)
class Initialisation:
    """What the test found.

    Attributes:
        tensor: The tensor that fits least.
        statistic: Largest distance of its distribution function from the drawn ones'.
        p: Chance of that by luck, times the number of tensors.
        tensors: Tensors compared.
    """

    tensor: str
    statistic: float
    p: float
    tensors: int

    @property
    def passed(self) -> bool:
        """Whether the start may have been drawn."""
        return self.p >= LUCK


def initialisation(start: Checkpoint, task: Task, *, seed: int) -> Initialisation:
    """Compare a start with models drawn here.

    Args:
        start: The first checkpoint.
        task: The task, which draws models.
        seed: The verifier's own.
    """
    with quiet_generators():
        torch.manual_seed(seed)
        drawn = [checkpoint_of(task.build_model()) for _ in range(DRAWS)]
        found = [*_compared(start, drawn, np.random.default_rng(seed))]
    if not found:
        return Initialisation("", 0.0, 1.0, 0)
    name, statistic, p = min(found, key=lambda one: (one[2], -one[1]))
    return Initialisation(name, statistic, min(1.0, p * len(found)), len(found))


def _compared(
    start: Checkpoint, drawn: list[Any], random: np.random.Generator
) -> Iterator[tuple[str, float, float]]:
    for at, tensor in enumerate(start.layout.tensors):
        if tensor.dtype not in CARRIER_DTYPES:
            continue
        wanted = [_values(one, at) for one in drawn]
        values = _values(start, at)
        if all(np.array_equal(wanted[0], other) for other in wanted[1:]):
            same = np.array_equal(values, wanted[0])
            yield tensor.name, float(not same), float(same)
            continue
        if len(values) > _MOST:
            # Of the prover's any; of the drawn ones, which are all alike, every so many.
            wanted = [one[:: len(values) // _MOST] for one in wanted]
            values = random.choice(values, _MOST, replace=False)
        yield tensor.name, *kolmogorov_smirnov(values, np.concatenate(wanted))


def kolmogorov_smirnov(
    one: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]
) -> tuple[float, float]:
    """The largest distance of two samples' distribution functions, and its chance by luck.

    >>> kolmogorov_smirnov(np.arange(100.0), np.arange(100.0))
    (0.0, 1.0)
    >>> kolmogorov_smirnov(np.arange(100.0), 50 + np.arange(100.0))[1] < 1e-9
    True
    """
    if not np.isfinite(one).all():
        return 1.0, 0.0
    one, other = np.sort(one), np.sort(other)
    both = np.concatenate([one, other])
    shares = [np.searchsorted(side, both, side="right") / len(side) for side in (one, other)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    return distance, _chance(distance, len(one) * len(other) / (len(one) + len(other)))


def _chance(distance: float, size: float) -> float:
    """The limit distribution, with the correction of Stephens for samples of moderate size."""
    root = math.sqrt(size)
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:
        return 1.0
    terms = (math.exp(-2 * (k * scaled) ** 2) * (1 if k % 2 else -1) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))


def _values(checkpoint: Checkpoint, at: int) -> NDArray[np.floating[Any]]:
    tensor = checkpoint.layout.tensors[at]
    return dtypes.to_float(checkpoint.read(at, 0, tensor.size), tensor.dtype).reshape(-1)
