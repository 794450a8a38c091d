"""What each operation of a traced graph does to the labels of its tensors.

One rule per kind of operation, found by its ATen name; nothing here knows a module or a model.
A rule takes the labels of the inputs and returns those of the result. Along the way it unifies
axes that the operation brings together, and says which scalings pass through it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from polo.alignment import axes
from polo.alignment.axes import ONE, Labels, Term

Axes: TypeAlias = tuple[Term, ...]


@dataclass(frozen=True)
class Stack:
    """A tensor whose slices along one axis have labels of their own (fused q, k and v)."""

    axis: int
    slices: tuple[Axes, ...]


Value: TypeAlias = Any
"""Axes, a Stack, a tuple of values, or what is no tensor."""


@dataclass
class Context:
    """What rules share.

    Attributes:
        labels: Makes labels and keeps equations.
        told_apart: Axes of views, by node, that some later operation takes single slices of.
        unknown: Names of operations without a rule.
        node: The name of the node at hand.
        operation: Its ATen name, without overload.
        shape: Shape of its result; None if it has several.
        norms: Variances of batch-norms: the scale they take doubled, and their ε.
        crossed: Axes of two operands that met without being paired.
        inner: Tensors that an operation makes on its way and does not return.
    """

    labels: Labels = field(default_factory=Labels)
    told_apart: set[tuple[str, int]] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    node: str = ""
    operation: str = ""
    shape: tuple[int, ...] | None = None
    norms: list[tuple[Term, float]] = field(default_factory=list)
    crossed: list[tuple[Term, Term]] = field(default_factory=list)
    inner: list[Axes] = field(default_factory=list)

    def settled(self, value: Value) -> Axes:
        """The labels of a tensor; slices with labels of their own are made to agree."""
        if not isinstance(value, Stack):
            found: Axes = value
            return found
        first = value.slices[0]
        for other in value.slices[1:]:
            for one, two in zip(first, other, strict=True):
                axes.unify(one, two)
                self.labels.equal(one, two)
        along = self.labels.new(len(value.slices), frozen=True)
        return (*first[: value.axis], along, *first[value.axis :])

    def fresh(self, shape: Sequence[int], *, frozen: bool = True) -> Axes:
        """New axes."""
        return tuple(self.labels.new(size, frozen=frozen) for size in shape)


Rule: TypeAlias = Callable[..., Value]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operations of these names, without overload or underscore."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def is_tensor(value: Value) -> bool:
    """Whether a value has labels."""
    return isinstance(value, Stack) or (
        isinstance(value, tuple) and all(isinstance(v, axes.Leaf | axes.Tree) for v in value)
    )


def unknown(context: Context, name: str, inputs: list[Value]) -> Value:
    """An operation without a rule: whatever it touches stays as it is."""
    context.unknown.add(name)
    for value in inputs:
        axes.freeze(*context.settled(value))
    return context.fresh(context.shape) if context.shape is not None else None


def broadcast(context: Context, values: Sequence[Value]) -> list[list[Term]]:
    """Unify tensors as elementwise operations do; per axis of the result, who has it."""
    settled = [context.settled(value) for value in values]
    rank = max(len(value) for value in settled)
    result: list[list[Term]] = []
    for at in range(-rank, 0):
        terms = [value[at] if len(value) >= -at else ONE for value in settled]
        wide = [term for term in terms if term.size > 1]
        for term in wide[1:]:
            axes.unify(wide[0], term)
        result.append(terms)
    return result
