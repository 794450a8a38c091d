"""How the tensors of a network hang together: plain data, without torch.

A *group* is a set of channels that move together. It appears in one or more axes of one or more
tensors. An axis is a product or a concatenation of groups, so an index of a group stands for
many indices of the axis, a stride apart. `trace` reads all of this off a model's graph.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from polo.errors import MissingError

if TYPE_CHECKING:
    import torch

Sizes: TypeAlias = Mapping[int, int] | Sequence[int]


@dataclass(frozen=True)
class Axis:
    """A product (row-major) or concatenation of groups, given by number, and of other axes."""

    joined: bool
    parts: "tuple[Axis | int, ...]"


@dataclass(frozen=True)
class Segment:
    """Part of an axis: every combination of indices of some groups.

    Attributes:
        offset: Index of the first element.
        factors: Group, size and stride of each factor.
    """

    offset: int
    factors: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Place:
    """One appearance of a group.

    Attributes:
        tensor: Name of the tensor.
        axis: Which axis of it.
        segment: Which segment of the axis.
        factor: Which factor of the segment.
        role: `in` where weights make the group's channels, `out` where weights read them, `both`
            for tied weights, `none` where neither is known.
    """

    tensor: str
    axis: int
    segment: int
    factor: int
    role: str


@dataclass(frozen=True)
class Group:
    """Channels that move together.

    Attributes:
        size: How many.
        permutable: Their order does not matter to the network.
        extendable: Channels can be added without a change of the code.
        linear: Only linear maps happen to them, so that any rotation can be undone.
        parent: Group whose every index orders these channels on its own (a head); or None.
        places: Where they appear.
    """

    size: int
    permutable: bool
    extendable: bool
    linear: bool
    parent: int | None
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Power:
    """What a scaling by a does at one place: times a^exponent.

    Attributes:
        place: Where.
        exponent: The power.
        offset: Added before and taken off after (the ε of a batch-norm's variance).
    """

    place: Place
    exponent: float
    offset: float = 0.0


@dataclass(frozen=True)
class Scaling:
    """Positive factors, one per channel of a group, that leave the network's function alone.

    Attributes:
        group: The group.
        powers: What is multiplied.
    """

    group: int
    powers: tuple[Power, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor of the state: its shape and what its axes are made of."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Wiring:
    """Everything that alignment needs to know about an architecture.

    Attributes:
        groups: All groups, by number.
        tensors: Every tensor of the state that the graph uses.
        scalings: All independent scalings.
        ties: Further names of the same tensors, as (alias, name).
        unknown: Operations without a rule; what they touch was frozen.
    """

    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...]
    scalings: tuple[Scaling, ...]
    ties: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def rotations(self) -> tuple[Scaling, ...]:
        """Scalings of groups that any invertible matrix can be applied to (LoRA, heads)."""
        found = []
        for scaling in self.scalings:
            group = self.groups[scaling.group]
            whole = {power.place for power in scaling.powers} == set(group.places)
            if group.linear and whole and {abs(p.exponent) for p in scaling.powers} == {1.0}:
                found.append(scaling)
        return tuple(found)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of all groups."""
        return tuple(group.size for group in self.groups)


def length(axis: Axis | int, sizes: Sizes) -> int:
    """How long an axis is if groups have these sizes."""
    if isinstance(axis, int):
        return sizes[axis]
    parts = [length(part, sizes) for part in axis.parts]
    return sum(parts) if axis.joined else math.prod(parts)


def segments(axis: Axis | int, sizes: Sizes) -> list[Segment]:
    """The segments of an axis if groups have these sizes; their number and order never change.

    >>> segments(Axis(False, (0, Axis(True, (1, 2)))), (2, 3, 4))[1]
    Segment(offset=3, factors=((0, 2, 7), (2, 4, 1)))
    """
    if isinstance(axis, int):
        return [Segment(0, ((axis, sizes[axis], 1),))]
    inner = [segments(part, sizes) for part in axis.parts]
    lengths = [length(part, sizes) for part in axis.parts]
    if axis.joined:
        starts = itertools.accumulate(lengths, initial=0)
        return [
            Segment(start + one.offset, one.factors)
            for start, part in zip(starts, inner, strict=False)
            for one in part
        ]
    strides = [math.prod(lengths[at + 1 :]) for at in range(len(lengths))]
    return [_crossed(combination, strides) for combination in itertools.product(*inner)]


def _crossed(parts: Sequence[Segment], strides: Sequence[int]) -> Segment:
    pairs = list(zip(parts, strides, strict=True))
    factors = tuple((g, n, s * stride) for part, stride in pairs for g, n, s in part.factors)
    return Segment(sum(part.offset * stride for part, stride in pairs), factors)


def trace(model: "torch.nn.Module", example_inputs: tuple[Any, ...]) -> Wiring:
    """The wiring of a model, read off its graph.

    Args:
        model: The model; it is neither run nor changed.
        example_inputs: Inputs of the right shapes, for `torch.export`.
    """
    try:
        from polo.alignment.tracing import trace_model
    except ImportError as error:
        raise MissingError(
            "tracing needs torch", advice="pip install 'polo-proof[align]'"
        ) from error
    return trace_model(model, example_inputs)
