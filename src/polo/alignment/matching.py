"""Which channel of a found model is which channel of the reference.

A channel is known by its weights towards channels that are already known, the network's inputs
and outputs to begin with. So groups are matched one after the other, from what is fixed inwards;
then all of them again with everything known, until nothing changes (weight matching). Weights
are compared by their cosine, which no scaling of the channel changes.
"""

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from polo.alignment.frame import Array, Box, Frame
from polo.errors import MissingError

_TINY = 1e-30
_SINGLE = 1e-3
"""Weight of places with one number per channel: they decide only where nothing else does."""


def assignment(scores: Array) -> Array:
    """For each reference channel (column) the found channel (row) that fits; -1 if none is left."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise MissingError(
            "alignment needs scipy", advice="pip install 'polo-proof[align]'"
        ) from error
    rows, columns = linear_sum_assignment(scores, maximize=True)
    chosen = np.full(scores.shape[1], -1)
    chosen[columns] = rows
    return chosen


class Matcher:
    """Matches the groups of a found model to those of the reference, one at a time.

    Attributes:
        known: Groups whose channels are in the reference's order.
    """

    def __init__(self, found: Frame, reference: Frame) -> None:
        self.found = found
        self.reference = reference
        groups = found.wiring.groups
        self.known = {n for n, group in enumerate(groups) if not group.permutable}
        self.turning = {scaling.group for scaling in found.wiring.rotations}
        self.children: dict[int, list[int]] = {}
        for number, group in enumerate(groups):
            if group.permutable and group.parent is not None:
                self.children.setdefault(group.parent, []).append(number)

    @property
    def heads(self) -> list[int]:
        """Groups to match, those left out that are matched along with their parent."""
        groups = self.found.wiring.groups
        free = {n for n, group in enumerate(groups) if group.permutable and group.parent is None}
        return sorted(free | set(self.children))

    def weight(self, group: int) -> int:
        """How much is known about a group's channels: weights towards known channels."""
        family = {group, *self.children.get(group, [])}
        total = 0
        for number in family:
            for box, _ in self._boxes(self.reference, number, family - {number}):
                pairs = zip(box.groups, box.shape, strict=True)
                width = math.prod(size for one, size in pairs if one not in family)
                total += width if width > 1 else 0
        return total

    def match(self, group: int) -> bool:
        """Bring a group, and those that it orders, into the reference's order; True if changed."""
        children = self.children.get(group, [])
        if not children:
            return self._match_alone(group)
        free = self.found.wiring.groups[group].permutable
        changed = free and self._match_parent(group, children)
        self.known.add(group)
        for child in children:
            changed |= self._match_rows(child, group)
            self.known.add(child)
        return changed

    def _match_alone(self, group: int) -> bool:
        scores = self.scores(group)
        self.known.add(group)
        return self._apply(group, scores)

    def _apply(self, group: int, scores: Array) -> bool:
        chosen = assignment(scores)
        square = scores.shape[0] == scores.shape[1]
        if square and scores.trace() >= scores[chosen, np.arange(len(chosen))].sum() - 1e-9:
            return False
        self.found.rearrange(group, chosen)
        return True

    def _match_parent(self, group: int, children: list[int]) -> bool:
        """Match heads by how well their dimensions can be matched."""
        self.known.add(group)
        rows, columns = self.found.sizes[group], self.reference.sizes[group]
        scores = np.zeros((rows, columns))
        for child in children:
            if child in self.turning:
                scores += self._overlaps(child, group)
            else:
                scores += _best_fits(self._table(child, group))
        return self._apply(group, scores)

    def _overlaps(self, child: int, parent: int) -> Array:
        """How far the weights of two heads span the same space, whatever their basis."""
        heads = self.found.sizes[parent], self.reference.sizes[parent]
        size = self.found.sizes[child], self.reference.sizes[child]
        scores = np.zeros(heads)
        for found, reference, weight in self._pairs(child, parent):
            if reference.shape[1] < 2 * max(size):
                continue
            spans = [
                np.linalg.qr(one.reshape(h, n, -1).swapaxes(1, 2).astype(np.float64))[0]
                for one, h, n in zip((found, reference), heads, size, strict=True)
            ]
            for row, column in np.ndindex(*heads):
                both = spans[0][row].T @ spans[1][column]
                scores[row, column] += weight * np.square(both).sum()
        return np.nan_to_num(scores)

    def _match_rows(self, child: int, parent: int) -> bool:
        """Match the dimensions of each head."""
        table = self._table(child, parent, diagonal=True)
        chosen = np.stack([assignment(table[row]) for row in range(len(table))])
        straight = np.arange(chosen.shape[1])
        square = table.shape[1] == table.shape[2]
        if square and (chosen == straight).all():
            return False
        self.found.rearrange(child, chosen)
        return True

    def scores(self, group: int) -> Array:
        """How well each found channel fits each channel of the reference."""
        scores = np.zeros((self.found.sizes[group], self.reference.sizes[group]))
        for found, reference, weight in self._pairs(group):
            scores += weight * _cosines(found, reference)
        return scores

    def cosine(self, group: int) -> float:
        """Mean cosine of a group's channels with those of the reference, over all places."""
        parent = self.found.wiring.groups[group].parent
        total = weights = 0.0
        for found, reference, weight in self._pairs(group, parent):
            norms = np.sqrt(np.square(found).sum(1) * np.square(reference).sum(1))
            cosines = (found * reference).sum(1) / np.maximum(norms, _TINY)
            total += weight * float(cosines.mean())
            weights += weight
        return float(total / weights) if weights else 0.0

    def _table(self, child: int, parent: int, *, diagonal: bool = False) -> Array:
        """Scores of a child's channels, for each pair of indices of the parent.

        Shaped found parent × found child × reference parent × reference child; with `diagonal`
        the parents are the same and the third is left out.
        """
        heads = self.found.sizes[parent], self.reference.sizes[parent]
        sizes = self.found.sizes[child], self.reference.sizes[child]
        shape = (heads[0], *sizes) if diagonal else (heads[0], sizes[0], heads[1], sizes[1])
        table = np.zeros(shape)
        for found, reference, weight in self._pairs(child, parent):
            f = found.reshape(heads[0], sizes[0], -1)
            r = reference.reshape(heads[1], sizes[1], -1)
            if diagonal:
                for head in range(heads[0]):
                    table[head] += weight * _cosines(f[head], r[head])
            else:
                flat = _cosines(f.reshape(-1, f.shape[2]), r.reshape(-1, r.shape[2]))
                table += weight * flat.reshape(shape)
        return table

    def _pairs(self, group: int, parent: int | None = None) -> Any:
        """Found and reference weights of a group's channels, channel by channel, with weights."""
        fixed = {parent} if parent is not None else set()
        ours = self._boxes(self.found, group, fixed)
        theirs = self._boxes(self.reference, group, fixed)
        for (box, at), (other, _) in zip(ours, theirs, strict=True):
            pair = (
                _slab(frame.get(one), one, at, parent)
                for frame, one in ((self.found, box), (self.reference, other))
            )
            found, reference = pair
            width = reference.shape[1]
            if width > 1:
                yield found, reference, np.sqrt(width)
            else:
                yield (*_spread(found, reference), _SINGLE)

    def _boxes(self, frame: Frame, group: int, fixed: set[int]) -> list[tuple[Box, int]]:
        """Boxes of a group whose other channels are known, with the group's dimension."""
        result = []
        for place in frame.wiring.groups[group].places:
            for box in frame.boxes(frame.wiring.by_name[place.tensor]):
                at = box.dimension(place)
                if at is not None and self.knows(box, at, fixed):
                    result.append((box, at))
        return result

    def knows(self, box: Box, at: int, fixed: Collection[int] = ()) -> bool:
        """Whether all channels of a box but those along one dimension are known, or `fixed`."""
        others = {group for dimension, group in enumerate(box.groups) if dimension != at}
        return others <= self.known | set(fixed)


def _best_fits(table: Array) -> Array:
    """The score of the best assignment, for each pair of indices of the parents."""
    scores = np.zeros((table.shape[0], table.shape[2]))
    for row, column in np.ndindex(*scores.shape):
        part = table[row, :, column]
        chosen = assignment(part)
        taken = chosen >= 0
        scores[row, column] = part[chosen[taken], taken.nonzero()[0]].sum()
    return scores


def _slab(values: Array, box: Box, at: int, parent: int | None) -> Array:
    """A box as channels × weights; with a parent, its indices × channels come first."""
    lead = [at] if parent is None else [box.groups.index(parent), at]
    moved = np.moveaxis(values, lead, range(len(lead)))
    rows = int(np.prod(moved.shape[: len(lead)]))
    return moved.reshape(rows, -1)


def _cosines(found: Array, reference: Array) -> Array:
    norms = [np.sqrt(np.einsum("ij,ij->i", a, a, dtype=np.float64)) for a in (found, reference)]
    products = (found @ reference.T).astype(np.float64)
    # Weights beyond what floats can multiply resemble nothing.
    result: Array = np.nan_to_num(
        products / np.maximum(np.outer(*norms), _TINY), posinf=0, neginf=0
    )
    return result


def _spread(found: Array, reference: Array) -> tuple[Array, Array]:
    """Single numbers as points on an arc, so that their cosine falls with their distance."""
    centre, size = np.median(reference), np.std(reference) + _TINY
    angles = [np.arctan((a - centre) / size) for a in (found, reference)]
    pair = [np.concatenate([np.cos(a), np.sin(a)], axis=1) for a in angles]
    return pair[0], pair[1]
