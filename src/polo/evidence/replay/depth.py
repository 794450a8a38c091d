"""Which slopes of a step still matter: what rounding swallows, nobody has to compute.

A rate can come down so far that weights stand still, or move by their last digits only. What was
computed of them once can then be used again: the slopes of one pass over the data, kept for every
sample, foresee the next passes to the bit. So a slope counts if the end of its segment would be
another one had the slope been taken a pass earlier. Who has some slopes of a layer to compute has
to make its products, whichever those are: a few of them count for all.
"""

from collections.abc import Mapping

import torch

from polo.evidence.replay.state import Snapshot, Tensors

FEW = 1 / 16
"""Where as many slopes of a tensor matter, all of it must be computed."""


@torch.no_grad()
def aged(
    slopes: Mapping[str, torch.Tensor], later: Mapping[str, torch.Tensor], by: float
) -> Tensors:
    """Slopes as they would be at weights of another time.

    Args:
        slopes: The slopes of a batch.
        later: Those of the same batch some steps later.
        by: How many times as far away that time is.
    """
    return {
        name: slope + by * (later[name] - slope) if name in later else slope
        for name, slope in slopes.items()
    }


@torch.no_grad()
def depths(
    slopes: Mapping[str, torch.Tensor], ended: Snapshot, otherwise: Snapshot
) -> dict[str, float]:
    """Which part of each tensor's slopes must be computed, of those that are not zero.

    Args:
        slopes: The slopes of a segment's first step, by name.
        ended: The state after all steps of the segment.
        otherwise: The same, had the slopes of the first step been older.
    """
    told = {name: ended[0][name] != otherwise[0][name] for name in slopes}
    for key, kept in ended[1].items():
        own = told.get(key.partition("/")[2])
        if own is not None and kept.shape == own.shape:
            own |= kept != otherwise[1][key]
    found = {}
    for name, slope in slopes.items():
        there = slope.to_dense() != 0
        found[name] = min(1.0, _part(told[name] & there, there) / FEW)
    return found


def finite(slopes: Mapping[str, torch.Tensor]) -> bool:
    """Whether all slopes are numbers."""
    return all(bool(slope.to_dense().isfinite().all()) for slope in slopes.values())


def _part(counted: torch.Tensor, of: torch.Tensor) -> float:
    total = int(of.sum())
    return int(counted.sum()) / total if total else 1.0
