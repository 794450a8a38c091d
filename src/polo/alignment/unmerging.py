"""Takes a merged adapter out of a model again: merged − base = B A, up to an invertible mix.

What comes of it depends on the found weights, the base and an older checkpoint alone; no mark is
ever seen, so a mark that is younger than the checkpoint still matches by chance on weights that
were made without it.
"""

import numpy as np

from polo.alignment.frame import Array
from polo.alignment.rotation import align_lora
from polo.errors import WeightsError

_SPARE = 8
_ROUNDS = 3
_TINY = 1e-30


def factors(change: Array, rank: int) -> tuple[Array, Array]:
    """The product of two thin matrices that comes closest to a change of weights.

    Args:
        change: The change, outputs × inputs.
        rank: Columns of the first, rows of the second.

    Returns:
        A (rank × inputs) and B (outputs × rank), as a LoRA pair; equal parts of the size in each.
    """
    if change.ndim != 2 or not 0 < rank <= min(change.shape):
        raise WeightsError(f"a change of shape {change.shape} is no product of rank {rank}")
    if not np.isfinite(change).all():
        raise WeightsError("the weights are not finite (NaN or infinity)")
    with np.errstate(all="ignore"):
        return _factors(change.astype(np.float64), rank)


def _factors(change: Array, rank: int) -> tuple[Array, Array]:
    # Powers of the change on a few fixed random directions; a full decomposition takes minutes.
    probe = np.random.default_rng(0).standard_normal((change.shape[1], rank + _SPARE))
    try:
        span = np.linalg.qr(change @ probe)[0]
        for _ in range(_ROUNDS):
            span = np.linalg.qr(change.T @ span)[0]
            span = np.linalg.qr(change @ span)[0]
        left, sizes, right = np.linalg.svd(span.T @ change, full_matrices=False)
    except np.linalg.LinAlgError as error:
        raise WeightsError("the change cannot be decomposed") from error
    roots = np.sqrt(sizes[:rank])
    return roots[:, None] * right[:rank], (span @ left[:, :rank]) * roots


def turned(pair: tuple[Array, Array], reference: tuple[Array, Array]) -> tuple[Array, Array]:
    """A pair in the basis and at the scale of an older one.

    Args:
        pair: A and B as they were found; the adapter's scale may still be in their product.
        reference: A and B of the older checkpoint.
    """
    down, up = (one.astype(np.float64) for one in pair)
    wanted_down, wanted_up = (one.astype(np.float64) for one in reference)
    try:
        with np.errstate(all="ignore"):
            scale = _scale(down, up, wanted_down, wanted_up)
            return align_lora(down / scale**0.5, up / scale**0.5, wanted_down, wanted_up)
    except (np.linalg.LinAlgError, ValueError) as error:
        message = "the adapter cannot be brought into the basis of the older one"
        raise WeightsError(message) from error


def _scale(down: Array, up: Array, wanted_down: Array, wanted_up: Array) -> float:
    """How many times the older product the found one is; traces of small matrices tell it."""
    shared = float(np.sum((up.T @ wanted_up) * (down @ wanted_down.T)))
    own = float(np.sum((wanted_up.T @ wanted_up) * (wanted_down @ wanted_down.T)))
    scale = shared / own if own > _TINY else 1.0
    return scale if _TINY < scale < 1 / _TINY else 1.0
