"""By what each channel of a found model was multiplied.

The reference differs from the true weights by training, so no factor is exact. Every place that a
scaling touches gives an estimate: the weighted median of the ratios, weight by weight, which a
few weights that moved much do not disturb. Estimates are averaged with more trust in places with
many weights that agree.
"""

import itertools
import math

import numpy as np

from polo.alignment.frame import Array, Frame
from polo.alignment.matching import Matcher
from polo.alignment.wiring import Power, Scaling

_LEAST = 1e-9
_MOST = 60.0
_TINY = 1e-30
_SAMPLE = 192
_UNTOUCHED = 0.15
_TOUCHED = 0.7
_ENOUGH = 8
_FLOOR = 1e-6
_ROUNDS = 4
_FAR = 2.0


class Rescaler:
    """Brings scalings of the found model to the reference's."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def rescale(self, scaling: Scaling) -> float:
        """Improve one scaling; returns the largest change, as a logarithm."""
        found = self.matcher.found
        before = found.logs(scaling)
        estimates = [self._estimate(power, scaling, before.shape) for power in scaling.powers]
        logs = _combined([e for e in estimates if e is not None], before.shape)
        change = _plausible(np.clip(before + np.nan_to_num(logs), -_MOST, _MOST)) - before
        largest = float(np.abs(change).max(initial=0.0))
        if largest > _LEAST:
            found.scale(scaling, np.exp(change))
        return largest

    def _estimate(
        self, power: Power, scaling: Scaling, shape: tuple[int, ...]
    ) -> tuple[Array, Array, Array] | None:
        """Logarithms of the factor, their variance to expect, and how far weights agree."""
        frames = self.matcher.found, self.matcher.reference
        parent = self.matcher.found.wiring.groups[scaling.group].parent
        found, reference = (self._weights(frame, power, parent, shape) for frame in frames)
        count = found.shape[-1]
        if not count:
            return None
        logs, width, agreeing = _median_ratio(found, reference)
        variance = (width**2 + 1 / count) / count / power.exponent**2
        logs = logs / power.exponent
        return logs.reshape(shape), variance.reshape(shape), agreeing.reshape(shape)

    def _weights(
        self, frame: Frame, power: Power, parent: int | None, shape: tuple[int, ...]
    ) -> Array:
        """A sample of what a power touches, towards known channels: channels × weights."""
        place, slabs = power.place, []
        for box in frame.boxes(frame.wiring.by_name[place.tensor]):
            at = box.dimension(place)
            if at is not None and self.matcher.knows(box, at):
                lead = [at] if parent is None else [box.groups.index(parent), at]
                values = np.moveaxis(frame.get(box), lead, range(len(lead)))
                slab = _sampled(values, len(lead)).astype(np.float64)
                slabs.append(slab.reshape(int(np.prod(shape)), -1) + power.offset)
        return np.concatenate(slabs, axis=1) if slabs else np.zeros((int(np.prod(shape)), 0))


def _combined(estimates: list[tuple[Array, Array, Array]], shape: tuple[int, ...]) -> Array:
    """One logarithm per channel out of those of all places."""
    if not estimates:
        return np.zeros(shape)
    logs, variances, agreeing = (np.stack(part) for part in zip(*estimates, strict=True))
    if len(logs) > 2 and logs[0].size >= _ENOUGH:
        # The level of noise at a place from all its channels, its shape from each channel's own.
        flat = logs.reshape(len(logs), -1), agreeing.reshape(len(logs), -1) > 0
        usual = np.median(variances.reshape(len(logs), -1), axis=1)
        level = np.maximum(_variances(*flat), _FLOOR) / usual
        variances = variances * level.reshape(-1, *[1] * len(shape))
    trust = agreeing / variances
    table, weights = (part.reshape(len(logs), -1).T for part in (logs, trust))
    mean = _weighted_median(table, weights).reshape(shape)
    for _ in range(_ROUNDS):
        # A bias near zero can be off by any factor: what is far from the others counts little.
        weight = trust / (1 + (logs - mean) ** 2 / (_FAR**2 * variances))
        mean = (logs * weight).sum(axis=0) / np.maximum(weight.sum(axis=0), _LEAST)
    return np.where(trust.sum(axis=0) > _LEAST, mean, 0.0)


def _variances(logs: Array, good: Array) -> Array:
    """How noisy each place is at most: the least variance of its difference to another place."""
    count = len(logs)
    spread = np.full((count, count), np.inf)
    for one, two in itertools.combinations(range(count), 2):
        both = good[one] & good[two]
        if both.any():
            difference = logs[one][both] - logs[two][both]
            middle = np.median(np.abs(difference - np.median(difference)))
            spread[one, two] = spread[two, one] = (1.5 * middle) ** 2
    least: Array = spread.min(axis=1)
    return np.where(np.isfinite(least), least, 1.0)


def _sampled(values: Array, lead: int) -> Array:
    """Every so many-th slice along the longest dimension after the leading ones."""
    rest = values.shape[lead:]
    if math.prod(rest) <= _SAMPLE:
        return values
    longest = lead + rest.index(max(rest))
    step = -(-math.prod(rest) // _SAMPLE)
    return values[(slice(None),) * longest + (slice(None, None, step),)]


def _plausible(logs: Array) -> Array:
    """Scales as they are, unless most channels show none: then only those that clearly do.

    Training moves all norms of a layer together, and single ones by a few percent. Weights that
    nobody rescaled are not to be corrected for that.
    """
    centre = np.median(logs)
    if abs(centre) > _TOUCHED or np.median(np.abs(logs - centre)) > _UNTOUCHED:
        return logs
    clear: Array = np.where(np.abs(logs - centre) > _TOUCHED, logs, 0.0)
    return clear


def _median_ratio(found: Array, reference: Array) -> tuple[Array, Array, Array]:
    """Weighted median of log ratios by row, their spread, and the share of weights that agree."""
    products = found * reference
    weights = np.sqrt(np.maximum(products, 0))
    ratios = np.log((np.abs(reference) + _TINY) / (np.abs(found) + _TINY))
    middle = _weighted_median(ratios, weights)
    width = _weighted_median(np.abs(ratios - middle[:, None]), weights)
    strength = np.sqrt(np.abs(products)).sum(axis=1)
    agreeing = weights.sum(axis=1) / np.maximum(strength, _TINY)
    return middle, width, np.where(strength > _TINY, np.maximum(2 * agreeing - 1, 0), 0)


def _weighted_median(values: Array, weights: Array) -> Array:
    order = np.argsort(values, axis=1)
    reached = np.cumsum(np.take_along_axis(weights, order, 1), axis=1)
    at = (reached < 0.5 * reached[:, -1:]).sum(axis=1).clip(max=values.shape[1] - 1)
    middle: Array = np.take_along_axis(values, np.take_along_axis(order, at[:, None], 1), 1)[:, 0]
    return middle
