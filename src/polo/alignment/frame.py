"""Weights as arrays that groups can be moved, cut, widened and scaled in.

A tensor is a patchwork of *boxes*: one segment of each axis. In a box every factor of every axis
is a dimension of its own, so that whatever is done to a group is done along one dimension.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polo.alignment.wiring import Place, Scaling, Segment, Tensor, Wiring, length, segments
from polo.errors import WeightsError

Array: TypeAlias = NDArray[Any]

_ROUNDS = 1000


@dataclass(frozen=True)
class Box:
    """One segment of each axis of a tensor.

    Attributes:
        tensor: The tensor's name.
        at: Which segment, by axis.
        parts: The segments.
    """

    tensor: str
    at: tuple[int, ...]
    parts: tuple[Segment, ...]

    @property
    def groups(self) -> list[int]:
        """The group of each dimension."""
        return [group for part in self.parts for group, _, _ in part.factors]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(size for part in self.parts for _, size, _ in part.factors)

    def covers(self, array: Array) -> bool:
        """Whether it is all there is of its tensor, whose elements then lie in the same order."""
        return array.size == math.prod(self.shape)

    def dimension(self, place: Place) -> int | None:
        """Which dimension a place is; None if it lies in another box."""
        if self.at[place.axis] != place.segment:
            return None
        return sum(len(part.factors) for part in self.parts[: place.axis]) + place.factor

    def indices(self) -> tuple[Array, ...]:
        """Indices of its elements in the tensor, axis by axis, ready to pick or to put."""
        return np.ix_(*(_positions(part) for part in self.parts))


def _positions(part: Segment) -> Array:
    found = np.array([part.offset])
    for _, size, stride in part.factors:
        found = (found[:, None] + np.arange(size) * stride).reshape(-1)
    return found


class Frame:
    """The arrays of one model, how large each group is in it, and how it was scaled so far."""

    def __init__(
        self, wiring: Wiring, arrays: Mapping[str, Array], sizes: tuple[int, ...] | None = None
    ) -> None:
        self.wiring = wiring
        self.arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        self.sizes = list(sizes if sizes is not None else wiring.sizes)
        self._logs: dict[int, Array] = {}

    def boxes(self, tensor: Tensor, sizes: list[int] | None = None) -> Iterator[Box]:
        """All boxes of a tensor."""
        parts = [segments(axis, sizes or self.sizes) for axis in tensor.axes]
        numbered = [list(enumerate(part)) for part in parts]
        for mix in itertools.product(*numbered):
            yield Box(tensor.name, tuple(at for at, _ in mix), tuple(part for _, part in mix))

    def get(self, box: Box) -> Array:
        """The values of a box, with a dimension per factor; perhaps a view."""
        array = self.arrays[box.tensor]
        if box.covers(array):
            return array.reshape(box.shape)
        return array[box.indices()].reshape(box.shape)

    def put(self, box: Box, values: Array) -> None:
        """Write the values of a box."""
        array = self.arrays[box.tensor]
        if box.covers(array):
            array.reshape(box.shape)[...] = values
            return
        shape = tuple(int(np.prod([n for _, n, _ in part.factors])) for part in box.parts)
        array[box.indices()] = values.reshape(shape)

    def touched(self, group: int) -> list[Tensor]:
        """Tensors that a group appears in."""
        names = dict.fromkeys(place.tensor for place in self.wiring.groups[group].places)
        return [self.wiring.by_name[name] for name in names]

    def rearrange(self, group: int, index: Array) -> None:
        """Give a group other channels: `index` says which old one each new one is; -1 is zeros.

        For a group with a parent, `index` has a row for each index of the parent.
        """
        sizes = list(self.sizes)
        sizes[group] = index.shape[-1]
        parent = self.wiring.groups[group].parent if index.ndim == 2 else None
        for tensor in self.touched(group):
            shape = tuple(length(axis, sizes) for axis in tensor.axes)
            fresh = np.empty(shape, self.arrays[tensor.name].dtype)
            moved = Frame(self.wiring, {tensor.name: fresh})
            both = zip(self.boxes(tensor), self.boxes(tensor, sizes), strict=True)
            for old, new in both:
                moved.put(new, _taken(self.get(old), old.groups, group, parent, index))
            self.arrays[tensor.name] = fresh
        self.sizes = sizes
        self._move_logs(group, index)

    def logs(self, scaling: Scaling) -> Array:
        """Logarithms of the factors that were applied so far, channel by channel."""
        parent = self.wiring.groups[scaling.group].parent
        shape = [self.sizes[scaling.group]]
        if parent is not None:
            shape.insert(0, self.sizes[parent])
        return self._logs.setdefault(id(scaling), np.zeros(shape))

    def _move_logs(self, group: int, index: Array) -> None:
        safe = np.maximum(index, 0)
        for scaling in self.wiring.scalings:
            logs = self._logs.get(id(scaling))
            if logs is None:
                continue
            if self.wiring.groups[scaling.group].parent == group:
                self._logs[id(scaling)] = logs[safe]
            elif scaling.group == group and index.ndim == 2:
                self._logs[id(scaling)] = np.take_along_axis(logs, safe, 1)
            elif scaling.group == group:
                self._logs[id(scaling)] = logs[..., safe]

    def scale(self, scaling: Scaling, factors: Array) -> None:
        """Apply a scaling: one factor per channel, or a row of them per index of the parent."""
        parent = self.wiring.groups[scaling.group].parent if factors.ndim == 2 else None
        self._logs[id(scaling)] = self.logs(scaling) + np.log(factors)
        for power in scaling.powers:
            for box in self.boxes(self.wiring.by_name[power.place.tensor]):
                at = box.dimension(power.place)
                if at is None:
                    continue
                along = spread(factors, box, at, parent) ** power.exponent
                if power.offset:
                    values = (self.get(box) + power.offset) * along - power.offset
                else:
                    values = self.get(box)
                    values *= along.astype(values.dtype)
                self.put(box, values)

    def turn(self, scaling: Scaling, matrices: Array) -> None:
        """Change the basis of a group's channels: one matrix, or one per index of the parent."""
        parent = self.wiring.groups[scaling.group].parent
        duals = np.linalg.inv(matrices).swapaxes(1, 2)
        for power in scaling.powers:
            for box in self.boxes(self.wiring.by_name[power.place.tensor]):
                at = box.dimension(power.place)
                if at is None:
                    continue
                lead = [at] if parent is None else [box.groups.index(parent), at]
                values = np.moveaxis(self.get(box), lead, range(len(lead)))
                flat = values.reshape(len(matrices), matrices.shape[1], -1)
                turned = (matrices if power.exponent > 0 else duals) @ flat
                self.put(box, np.moveaxis(turned.reshape(values.shape), range(len(lead)), lead))


def _taken(values: Array, groups: list[int], group: int, parent: int | None, index: Array) -> Array:
    above = groups.index(parent) if parent is not None else -1
    for at in [at for at, one in enumerate(groups) if one == group]:
        safe = np.maximum(index, 0)
        if parent is None:
            values = np.take(values, safe, axis=at)
        else:
            values = np.take_along_axis(values, _laid(safe, above, at, values.ndim), at)
        if (index < 0).any():
            values = values * _laid(index >= 0, above, at, values.ndim)
    return values


def _laid(table: Array, above: int, at: int, rank: int) -> Array:
    """A row along dimension `at`, or a table along `above` and `at`, shaped to be broadcast."""
    shape = [1] * rank
    shape[at] = table.shape[-1]
    if table.ndim == 1:
        return table.reshape(shape)
    shape[above] = table.shape[0]
    return (table if above < at else table.T).reshape(shape)


def spread(factors: Array, box: Box, at: int, parent: int | None) -> Array:
    """Factors of channels, shaped like a box along the dimensions they belong to."""
    above = box.groups.index(parent) if parent is not None else -1
    return _laid(factors, above, at, len(box.shape))


def sizes_of(wiring: Wiring, arrays: Mapping[str, Array]) -> tuple[int, ...]:
    """How large each group is in a model whose tensors may be wider than they were."""
    known = {n: g.size for n, g in enumerate(wiring.groups) if not g.permutable}
    open_axes = [
        (tensor, axis, at) for tensor in wiring.tensors for at, axis in enumerate(tensor.axes)
    ]
    for _ in range(_ROUNDS):
        progress = False
        for tensor, axis, at in open_axes:
            progress |= _solve(axis, arrays[tensor.name].shape[at], known)
        if not progress:
            break
    sizes = tuple(known.get(n, group.size) for n, group in enumerate(wiring.groups))
    for tensor, axis, at in open_axes:
        found = arrays[tensor.name].shape[at]
        if length(axis, sizes) != found:
            raise WeightsError(
                f"axis {at} has length {found}; no sizes of the groups fit all tensors",
                place=tensor.name,
                advice="Give the weights of the same architecture, or of a wider one.",
            )
    return sizes


def _solve(axis: Any, found: int, known: dict[int, int]) -> bool:
    """Learn the size of a group from an axis where it alone is unknown."""
    unknown = sorted({g for one in _leaves(axis) for g in [one] if g not in known})
    if len(unknown) != 1:
        return False
    # The length is linear in one unknown size.
    (group,) = unknown
    none, one = (length(axis, {**known, group: size}) for size in (0, 1))
    size, rest = divmod(found - none, one - none)
    if rest or size < 1:
        return False
    known[group] = size
    return True


def _leaves(axis: Any) -> Iterator[int]:
    if isinstance(axis, int):
        yield axis
    else:
        for part in axis.parts:
            yield from _leaves(part)
