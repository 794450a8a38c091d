"""Undoes rotations: A → R A, B → B R⁻¹ for any invertible R.

Between two linear maps with nothing in between, a whole basis can be changed: in LoRA pairs, and
in the heads of attention. The basis that comes closest to the reference's solves S A ≈ A₀ and
B ≈ B₀ S, which is linear in S; both sides count.
"""

import numpy as np

from polo.alignment.frame import Array, Frame
from polo.alignment.matching import Matcher
from polo.alignment.wiring import Scaling
from polo.errors import MissingError, WeightsError

_ROUNDS = 4
_POOR = 0.5
_BETTER = 0.5
_TINY = 1e-30


def align_lora(
    down: Array, up: Array, reference_down: Array, reference_up: Array
) -> tuple[Array, Array]:
    """Bring a LoRA pair into the basis of an older one; its product stays the same.

    Args:
        down: A as found, rank × inputs.
        up: B as found, outputs × rank.
        reference_down: A of the reference.
        reference_up: B of the reference; zeros if it had not been trained yet.
    """
    same = down.shape == reference_down.shape and up.shape == reference_up.shape
    if not same or down.ndim != 2 or up.ndim != 2 or down.shape[0] != up.shape[1]:
        raise WeightsError(
            f"these are no two LoRA pairs of one shape: {down.shape} and {up.shape}, reference "
            f"{reference_down.shape} and {reference_up.shape}"
        )
    if not all(np.isfinite(one).all() for one in (down, up, reference_down, reference_up)):
        raise WeightsError("the weights are not finite (NaN or infinity)")
    turn = basis(down, up.T, reference_down, reference_up.T)
    first = turn @ down.astype(np.float64)
    second = np.linalg.solve(turn.T, up.T.astype(np.float64)).T
    return first.astype(down.dtype), second.astype(up.dtype)


def basis(rows: Array, duals: Array, wanted_rows: Array, wanted_duals: Array) -> Array:
    """S with S rows ≈ wanted rows and S⁻ᵀ duals ≈ wanted duals, by least squares."""
    rows, duals = rows.astype(np.float64), duals.astype(np.float64)
    total = _start(rows, duals, wanted_rows, wanted_duals)
    for _ in range(_ROUNDS):
        # In the found basis errors count by that basis; go there, and measure again.
        turned, back = total @ rows, np.linalg.solve(total.T, duals)
        step = _solve(turned, back, wanted_rows, wanted_duals)
        if not _invertible(step @ total):
            break
        total = step @ total
    return total


def _start(rows: Array, duals: Array, wanted_rows: Array, wanted_duals: Array) -> Array:
    """A first basis, from the side that pins it down better."""
    by_rows = np.linalg.lstsq(rows.T, wanted_rows.T.astype(np.float64), rcond=None)[0].T
    if _invertible(by_rows):
        return by_rows
    by_duals = np.linalg.lstsq(wanted_duals.T.astype(np.float64), duals.T, rcond=None)[0]
    return by_duals if _invertible(by_duals) else np.eye(len(rows))


def _invertible(matrix: Array) -> bool:
    return bool(np.isfinite(matrix).all() and np.linalg.cond(matrix) < 1e8)


def _solve(rows: Array, duals: Array, wanted_rows: Array, wanted_duals: Array) -> Array:
    """The linear least-squares problem: S rows = wanted rows, wanted dualsᵀ S = dualsᵀ."""
    try:
        from scipy.linalg import solve_sylvester
    except ImportError as error:
        raise MissingError(
            "alignment needs scipy", advice="pip install 'polo-proof[align]'"
        ) from error
    sizes = [
        max(float(np.square(w, dtype=np.float64).sum()), _TINY) for w in (wanted_rows, wanted_duals)
    ]
    weights = [1 / size if size > _TINY else 0.0 for size in sizes]
    right = weights[0] * rows @ rows.T
    left = weights[1] * wanted_duals @ wanted_duals.T
    target = weights[0] * wanted_rows @ rows.T + weights[1] * wanted_duals @ duals.T
    # A touch of the identity keeps directions fixed that neither side knows about.
    ridge = 1e-9 * (np.trace(left) + np.trace(right)) / len(rows)
    unit = ridge * np.eye(len(rows))
    step: Array = solve_sylvester(left + unit, right, target + unit)
    return step


class Rotator:
    """Turns groups of the found model that fit badly although only linear maps touch them."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def turn(self, scaling: Scaling) -> bool:
        """Turn a group if that makes it fit far better; True if it did."""
        found, reference = (
            self._sides(frame, scaling) for frame in (self.matcher.found, self.matcher.reference)
        )
        heads, size = found[0].shape[:2]
        if found[0].shape != reference[0].shape or sum(s.shape[2] for s in found) < 2 * size:
            return False
        turns = []
        before = after = 0.0
        for head in range(heads):
            pair = [side[head] for side in found]
            wanted = [side[head] for side in reference]
            turn = basis(*pair, *wanted)
            turned = [turn @ pair[0], np.linalg.solve(turn.T, pair[1])]
            before += _distance(pair, wanted)
            after += _distance(turned, wanted)
            turns.append(turn)
        if before < _POOR * heads or after > _BETTER * before:
            return False
        self.matcher.found.turn(scaling, np.stack(turns))
        return True

    def _sides(self, frame: Frame, scaling: Scaling) -> list[Array]:
        """All weights with exponent 1 and all with -1, as heads × channels × weights."""
        parent = frame.wiring.groups[scaling.group].parent
        heads = frame.sizes[parent] if parent is not None else 1
        size = frame.sizes[scaling.group]
        sides: list[list[Array]] = [[np.zeros((heads, size, 0))], [np.zeros((heads, size, 0))]]
        for power in scaling.powers:
            for box in frame.boxes(frame.wiring.by_name[power.place.tensor]):
                at = box.dimension(power.place)
                if at is None or not self.matcher.knows(box, at):
                    continue
                lead = [at] if parent is None else [box.groups.index(parent), at]
                values = np.moveaxis(frame.get(box), lead, range(len(lead)))
                sides[power.exponent < 0].append(values.reshape(heads, size, -1))
        return [np.concatenate(side, axis=2) for side in sides]


def _distance(found: list[Array], wanted: list[Array]) -> float:
    """Squared distance, relative to the reference, averaged over the two sides."""
    parts = [
        float(np.square(f - w).sum() / np.square(w).sum())
        for f, w in zip(found, wanted, strict=True)
        if w.size and np.square(w).sum() > _TINY
    ]
    return sum(parts) / max(1, len(parts))
