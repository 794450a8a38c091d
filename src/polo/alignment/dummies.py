"""Channels that do nothing: found and taken out.

A dummy is a channel that nobody reads, or one of several that always say the same, up to a
factor. Scaling is brought to a normal form first, so that proportional channels become equal;
equal ones are merged by adding up what is read of them; what then cancels is dropped.
"""

from dataclasses import dataclass

import numpy as np

from polo.alignment.frame import Array, Frame
from polo.alignment.wiring import Place, Power, Scaling

_ROUNDS = 8
_SILENT = 1e-6
_EQUAL = 1e-4
_PROBES = 8
_MOST_EQUAL = 4096
_TINY = 1e-30


@dataclass
class Pruned:
    """What was taken out of one group."""

    dropped: int = 0
    merged: int = 0


def prune(frame: Frame, sizes: tuple[int, ...]) -> dict[int, Pruned]:
    """Take dummies out of every group that is larger than it should be."""
    done: dict[int, Pruned] = {}
    for _ in range(_ROUNDS):
        changed = False
        for number, group in enumerate(frame.wiring.groups):
            roles = {place.role for place in group.places}
            if frame.sizes[number] > sizes[number] and roles == {"in", "out"}:
                record = done.setdefault(number, Pruned())
                changed |= _prune(frame, number, sizes[number], record)
        # A clique may hide behind the dummies that read it: look again once those are gone.
        if not changed:
            break
    return done


def _prune(frame: Frame, number: int, size: int, record: Pruned) -> bool:
    changed = _drop_silent(frame, number, size, record)
    if frame.sizes[number] <= size or frame.wiring.groups[number].parent is not None:
        return changed
    scaled = _normalise(frame, number)
    labels = _equal(frame, number)
    loud = np.bincount(labels, weights=_read_norms(frame, number))
    first = _merge(frame, number, labels)
    # What cancels leaves rounding errors of what was added up.
    norms = _read_norms(frame, number)
    kept = _heard(norms, size, np.where(np.bincount(labels) > 1, 10 * loud, 0))
    frame.rearrange(number, kept)
    for scaling, factors in scaled:
        frame.scale(scaling, 1 / factors[first[kept]])
    record.merged += len(labels) - len(first)
    record.dropped += len(first) - len(kept)
    return changed or len(kept) < len(labels)


def _drop_silent(frame: Frame, number: int, size: int, record: Pruned) -> bool:
    kept = _heard(_read_norms(frame, number), size, np.zeros(1))
    gone = frame.sizes[number] - len(kept)
    if gone:
        frame.rearrange(number, kept)
    record.dropped += gone
    return gone > 0


def _heard(norms: Array, size: int, scale: Array) -> Array:
    """Channels that somebody reads; all of them if too few would be left."""
    typical = np.median(norms[norms > 0]) if (norms > 0).any() else 0.0
    heard = norms > _SILENT * np.maximum(typical, scale)
    return np.flatnonzero(heard if heard.sum() >= size else np.ones_like(heard))


def _slabs(frame: Frame, place: Place) -> list[Array]:
    """Everything at a place, as channels × weights."""
    slabs = []
    for box in frame.boxes(frame.wiring.by_name[place.tensor]):
        at = box.dimension(place)
        if at is not None:
            values = np.moveaxis(frame.get(box), at, 0)
            slabs.append(values.reshape(len(values), -1))
    return slabs


def _read_norms(frame: Frame, number: int) -> Array:
    total = np.zeros(frame.sizes[number])
    for place in frame.wiring.groups[number].places:
        if place.role == "out":
            for slab in _slabs(frame, place):
                total += np.einsum("ij,ij->i", slab, slab, dtype=np.float64)
    return np.sqrt(total)


def _normalise(frame: Frame, number: int) -> list[tuple[Scaling, Array]]:
    """Bring a group's scalings to a normal form: as many places as can be have norm one.

    Returns what every channel was multiplied by.
    """
    scalings = [one for one in frame.wiring.scalings if one.group == number]
    exponents, logs = np.zeros((0, len(scalings))), np.zeros((0, frame.sizes[number]))
    for power, norms in _steadiest(frame, scalings):
        row = [[_exponent(scaling, power.place) for scaling in scalings]]
        wider = np.concatenate([exponents, row])
        if np.linalg.matrix_rank(wider) == len(wider):
            exponents, logs = wider, np.concatenate([logs, [np.nan_to_num(norms)]])
    steps = -np.linalg.pinv(exponents) @ logs
    done = [(scaling, np.exp(step)) for scaling, step in zip(scalings, steps, strict=True)]
    for scaling, factors in done:
        frame.scale(scaling, factors)
    return done


def _steadiest(frame: Frame, scalings: list[Scaling]) -> list[tuple[Power, Array]]:
    """Incoming places and the logs of their norms, those first that are far from zero everywhere.

    A norm of zero has no log and is NaN. A bias may be zero; who divided by it would find no two
    channels alike.
    """
    powers = [power for scaling in scalings for power in scaling.powers]
    found = [(power, _log_norms(frame, power)) for power in powers if power.place.role == "in"]

    def unsteadiness(pair: tuple[Power, Array]) -> tuple[int, float]:
        alive = pair[1][np.isfinite(pair[1])]
        depth = np.median(alive) - alive.min() if len(alive) else 0.0
        return len(pair[1]) - len(alive), float(depth)

    return sorted(found, key=unsteadiness)


def _exponent(scaling: Scaling, place: Place) -> float:
    return sum(power.exponent for power in scaling.powers if power.place == place)


def _log_norms(frame: Frame, power: Power) -> Array:
    parts = [
        np.square(slab + power.offset, dtype=np.float64).sum(axis=1)
        for slab in _slabs(frame, power.place)
    ]
    squares = np.sum(parts, axis=0)
    return np.where(squares > _TINY, 0.5 * np.log(np.maximum(squares, _TINY)), np.nan)


def _equal(frame: Frame, number: int) -> Array:
    """For each channel, which of the distinct ones it is; compared by fixed random probes."""
    probes = []
    draw = np.random.default_rng(0)
    for place in frame.wiring.groups[number].places:
        if place.role == "in":
            for slab in _slabs(frame, place):
                wide = slab.astype(np.float64)
                size = np.sqrt(np.square(wide).mean()) * np.sqrt(wide.shape[1]) + _TINY
                probes.append(wide @ draw.standard_normal((wide.shape[1], _PROBES)) / size)
    table = np.concatenate(probes, axis=1)
    order = np.argsort(table[:, 0], kind="stable")
    ends = np.searchsorted(table[order, 0], table[order, 0] + _EQUAL, side="right")
    labels = np.full(len(table), -1)
    count = 0
    for at, channel in enumerate(order):
        if labels[channel] >= 0:
            continue
        close = order[at : min(ends[at], at + _MOST_EQUAL)]
        same = close[(np.abs(table[close] - table[channel]) <= _EQUAL).all(axis=1)]
        labels[same[labels[same] < 0]] = count
        count += 1
    return labels


def _merge(frame: Frame, number: int, labels: Array) -> Array:
    """Keep the first channel of each kind, and let it say what all of them said together."""
    _, first = np.unique(labels, return_index=True)
    if len(first) == len(labels):
        return np.arange(len(labels))
    for place in frame.wiring.groups[number].places:
        if place.role != "out":
            continue
        for box in frame.boxes(frame.wiring.by_name[place.tensor]):
            at = box.dimension(place)
            if at is not None:
                values = np.moveaxis(frame.get(box).copy(), at, 0)
                added = np.zeros((len(first), *values.shape[1:]))
                np.add.at(added, labels, values)
                values[first] = added
                frame.put(box, np.moveaxis(values, 0, at))
    frame.rearrange(number, first)
    return first
