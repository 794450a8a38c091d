"""Channels that do nothing: found and taken out.

A dummy is a channel that nobody reads, or one of several that always say the same, up to a
factor. Scaling is brought to a normal form first, so that proportional channels become equal;
equal ones are merged by adding up what is read of them; what then cancels is dropped.
"""

from dataclasses import dataclass

import numpy as np

from polo.alignment.frame import Array, Frame
from polo.alignment.wiring import Place, Scaling

_ROUNDS = 8
_SILENT = 1e-6
_EQUAL = 1e-4
_PROBES = 8
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
    changed = _drop_silent(frame, number, size, record, _read_norms(frame, number))
    if frame.sizes[number] <= size or frame.wiring.groups[number].parent is not None:
        return changed
    scaled = _normalise(frame, number)
    labels = _equal(frame, number)
    before = np.bincount(labels, weights=_read_norms(frame, number))
    first = _merge(frame, number, labels)
    for scaling, factors in scaled:
        frame.scale(scaling, 1 / factors[first])
    if len(first) == len(labels):
        return changed
    record.merged += len(labels) - frame.sizes[number]
    # What cancels leaves rounding errors of what was added up.
    _drop_silent(frame, number, size, record, _read_norms(frame, number), before)
    return True


def _drop_silent(
    frame: Frame, number: int, size: int, record: Pruned, norms: Array, scale: Array | None = None
) -> bool:
    """Drop channels that nobody reads, unless too few would be left."""
    typical = np.median(norms[norms > 0]) if (norms > 0).any() else 0.0
    heard = norms > _SILENT * np.maximum(typical, 0 if scale is None else 10 * scale)
    if heard.all() or heard.sum() < size:
        return False
    record.dropped += int((~heard).sum())
    frame.rearrange(number, heard.nonzero()[0])
    return True


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
    """Scale so that the first place of each scaling has norm one; returns by what it was."""
    done = []
    for scaling in frame.wiring.scalings:
        first = scaling.powers[0]
        if scaling.group != number or first.place.role != "in":
            continue
        squares = np.zeros(frame.sizes[number])
        for slab in _slabs(frame, first.place):
            squares += np.square(slab + first.offset, dtype=np.float64).sum(axis=1)
        norms = np.where(squares > _TINY, np.sqrt(squares), 1.0)
        factors = norms ** (-1 / first.exponent)
        frame.scale(scaling, factors)
        done.append((scaling, factors))
    return done


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
    labels = np.full(len(table), -1)
    count = 0
    for at, channel in enumerate(order):
        if labels[channel] >= 0:
            continue
        close = order[at:][table[order[at:], 0] - table[channel, 0] <= _EQUAL]
        same = close[(np.abs(table[close] - table[channel]) <= _EQUAL).all(axis=1)]
        labels[same[labels[same] < 0]] = count
        count += 1
    return labels


def _merge(frame: Frame, number: int, labels: Array) -> Array:
    """Keep the first channel of each kind, and let it say what all of them said together."""
    _, first = np.unique(labels, return_index=True)
    if len(first) == len(labels):
        return np.arange(len(labels))
    sums = np.zeros((len(first), len(labels)))
    sums[labels, np.arange(len(labels))] = 1
    for place in frame.wiring.groups[number].places:
        if place.role != "out":
            continue
        for box in frame.boxes(frame.wiring.by_name[place.tensor]):
            at = box.dimension(place)
            if at is not None:
                values = np.moveaxis(frame.get(box).copy(), at, 0)
                added = np.tensordot(sums, values.astype(np.float64), axes=1)
                values[first] = added
                frame.put(box, np.moveaxis(values, 0, at))
    frame.rearrange(number, first)
    return first
