"""Rules for operations that only move elements: views, slices, joins, look-ups, constants."""

import math
from collections.abc import Sequence
from typing import Any

from polo.alignment import axes
from polo.alignment.axes import ONE, MismatchError, Term
from polo.alignment.rules import Axes, Context, Stack, Value, is_tensor, rule, unknown


@rule("view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze", "unsqueeze")
def view(context: Context, value: Value, *arguments: Any, **_: Any) -> Value:
    """Anything that keeps the order of elements and changes how axes are counted."""
    assert context.shape is not None
    if isinstance(value, Stack) and context.operation in ("squeeze", "unsqueeze"):
        narrow = _view_slices(context, value, arguments)
        if narrow is not None:
            return narrow
    made: list[Axes] = [()]
    axis = -1
    for group, sizes in _regrouped(context.settled(value), context.shape):
        first, whole = len(made[0]) + (axis >= 0), axes.product(group)
        apart = [at for at in range(len(sizes)) if (context.node, first + at) in context.told_apart]
        slices = _slices(whole, sizes, apart[0]) if apart and axis < 0 else None
        if slices is None:
            cut = tuple(_recut(context, whole, sizes, first))
            made = [(*done, *cut) for done in made]
        else:
            axis = first + apart[0]
            made = [(*made[0], *each) for each in slices]
    return made[0] if axis < 0 else Stack(axis, tuple(made))


def _slices(whole: Term, sizes: Sequence[int], apart: int) -> list[Axes] | None:
    """A view into one axis too many: its slices, which need not have anything in common."""
    try:
        head, rest = axes.cut_product(whole, math.prod(sizes[:apart]))
        before = _cuts(head, sizes[:apart])
        slices = []
        for left in range(sizes[apart], 0, -1):
            part, rest = axes.cut_sum(rest, rest.size // left) if left > 1 else (rest, ONE)
            slices.append((*before, *_cuts(part, sizes[apart + 1 :])))
    except MismatchError:
        return None
    return slices


def _cuts(term: Term, sizes: Sequence[int]) -> list[Term]:
    made = []
    for size in sizes:
        head, term = axes.cut_product(term, size)
        made.append(head)
    return made


def _recut(context: Context, whole: Term, sizes: Sequence[int], first: int) -> list[Term]:
    try:
        made = _cuts(whole, sizes)
    except MismatchError:
        # Perhaps a concatenation that is cut apart again: then its slices can be told apart.
        context.told_apart.update((context.node, first + at) for at in range(len(sizes)))
        axes.freeze(whole)
        return list(context.fresh(sizes))
    for at, term in enumerate(made):
        if isinstance(term, axes.Leaf) and len(sizes) > 1 and term.atom.origin is None:
            term.atom.origin = (context.node, first + at)
    return made


def _regrouped(terms: Axes, shape: Sequence[int]) -> list[tuple[list[Term], list[int]]]:
    """Runs of old axes and of new sizes with the same product, as short as possible."""
    old, new = list(terms), list(shape)
    runs: list[tuple[list[Term], list[int]]] = []
    while old or new:
        group = [old.pop(0)] if old else []
        sizes = [new.pop(0)] if new else []
        while (have := math.prod(t.size for t in group)) != (want := math.prod(sizes)):
            if have < want:
                group.append(old.pop(0))
            else:
                sizes.append(new.pop(0))
        runs.append((group, sizes))
    return runs


def _view_slices(context: Context, value: Stack, arguments: Sequence[Any]) -> Stack | None:
    """Adding or taking away an axis of length one beside the one that is stacked along."""
    dim = arguments[0] if arguments else None
    if not isinstance(dim, int):
        return None
    adds = context.operation == "unsqueeze"
    at = dim % (len(value.slices[0]) + 1 + adds)
    inner = at - (at > value.axis)
    if adds:
        axis = value.axis + (at <= value.axis)
        return Stack(axis, tuple((*s[:inner], ONE, *s[inner:]) for s in value.slices))
    if at == value.axis:
        return None
    if value.slices[0][inner].size != 1:
        return value
    axis = value.axis - (at < value.axis)
    return Stack(axis, tuple((*s[:inner], *s[inner + 1 :]) for s in value.slices))


@rule("permute", "transpose", "t", "swapaxes", "numpy_T", "mT")
def permutation(context: Context, value: Value, *arguments: Any, **_: Any) -> Value:
    """Axes change places."""
    rank = len(value.slices[0]) + 1 if isinstance(value, Stack) else len(value)
    order = list(range(rank))
    if context.operation == "permute":
        order = [d % rank for d in arguments[0]]
    elif context.operation == "numpy_T":
        order.reverse()
    elif context.operation == "mT":
        order[-2:] = reversed(order[-2:])
    elif rank > 1:
        one, two = arguments or (0, 1)
        one, two = one % rank, two % rank
        order[one], order[two] = order[two], order[one]
    if not isinstance(value, Stack):
        return tuple(value[at] for at in order)
    inner = [at - (at > value.axis) for at in order if at != value.axis]
    return Stack(order.index(value.axis), tuple(tuple(s[i] for i in inner) for s in value.slices))


# Slices and joins --------------------------------------------------------------------------


@rule("select")
def select(context: Context, value: Value, dim: int, index: int) -> Value:
    """One slice of an axis, whose channels are thereby told apart."""
    if isinstance(value, Stack) and dim % (len(value.slices[0]) + 1) == value.axis:
        return value.slices[index]
    terms = context.settled(value)
    at = dim % len(terms)
    _tell_apart(context, terms[at])
    return (*terms[:at], *terms[at + 1 :])


def _tell_apart(context: Context, term: Term) -> None:
    found = list(axes.leaves(term))
    if len(found) == 1 and found[0].atom.origin and not found[0].atom.frozen:
        context.told_apart.add(found[0].atom.origin)
    axes.freeze(term)


@rule("unbind")
def unbind(context: Context, value: Value, dim: int = 0) -> Value:
    """All slices of an axis."""
    rank = len(value.slices[0]) + 1 if isinstance(value, Stack) else len(value)
    stacked = isinstance(value, Stack) and dim % rank == value.axis
    size = len(value.slices) if stacked else context.settled(value)[dim].size
    return tuple(select(context, value, dim, at) for at in range(size))


@rule("slice")
def piece(
    context: Context, value: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    """Part of an axis."""
    terms = context.settled(value)
    size = terms[dim].size
    first, last, stride = slice(start, end, step).indices(size)
    if (first, last, stride) == (0, size, 1):
        return terms
    if stride != 1 or last <= first:
        axes.freeze(terms[dim])
        made: Term = context.labels.new(len(range(first, last, stride)), frozen=True)
    else:
        lengths = [first, last - first, size - last]
        made = pieces(context, terms[dim], [n for n in lengths if n])[1 if first else 0]
    return _with(terms, dim, made)


def _with(terms: Axes, dim: int, term: Term) -> Axes:
    at = dim % len(terms)
    return (*terms[:at], term, *terms[at + 1 :])


def pieces(context: Context, term: Term, lengths: Sequence[int]) -> list[Term]:
    """An axis cut into parts of given lengths."""
    made: list[Term] = []
    rest = axes.resolve(term)
    try:
        for length in lengths[:-1]:
            head, rest = axes.cut_sum(rest, length)
            made.append(head)
    except MismatchError:
        axes.freeze(term)
        return list(context.fresh(lengths))
    return [*made, rest]


@rule("split", "split_with_sizes", "chunk", "tensor_split")
def split(context: Context, value: Value, sizes: Any, dim: int = 0) -> Value:
    """An axis cut into parts."""
    terms = context.settled(value)
    total = terms[dim].size
    if isinstance(sizes, int):
        step = -(-total // sizes) if context.operation == "chunk" else sizes
        sizes = [min(step, total - at) for at in range(0, total, step)]
    cut = pieces(context, terms[dim], list(sizes))
    return tuple(_with(terms, dim, part) for part in cut)


@rule("cat", "concat")
def cat(context: Context, values: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along one axis; all other axes agree."""
    settled = [context.settled(value) for value in values]
    settled = [terms for terms in settled if terms]
    at = dim % len(settled[0])
    made = []
    for axis in range(len(settled[0])):
        terms = [one[axis] for one in settled]
        if axis == at:
            made.append(axes.concatenation([axes.resolve(term) for term in terms]))
            continue
        for term in terms[1:]:
            axes.unify(terms[0], term)
            context.labels.equal(terms[0], term)
        made.append(terms[0])
    return tuple(made)


@rule("stack")
def stack(context: Context, values: Sequence[Value], dim: int = 0) -> Value:
    """Tensors side by side along a new axis."""
    settled = tuple(context.settled(value) for value in values)
    return Stack(dim % (len(settled[0]) + 1), settled)


@rule("expand", "expand_as", "broadcast_to")
def expand(context: Context, value: Value, *_: Any, **__: Any) -> Value:
    """The same values again and again along axes of length one, or new ones."""
    assert context.shape is not None
    terms = context.settled(value)
    lead = len(context.shape) - len(terms)
    made = []
    for at, size in enumerate(context.shape):
        if at >= lead and terms[at - lead].size == size:
            made.append(terms[at - lead])
        else:
            made.append(_constant(context, size))
    return tuple(made)


def _constant(context: Context, size: int) -> Term:
    """An axis along which nothing changes: free to be reordered, not to be scaled."""
    term = context.labels.new(size)
    context.labels.zero(term)
    return term


@rule("constant_pad_nd", "pad")
def pad(context: Context, value: Value, widths: Sequence[int], *_: Any, **__: Any) -> Value:
    """Constants before and after, along some of the last axes."""
    terms = context.settled(value)
    for at, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        dim = len(terms) - 1 - at
        if (before, after) != (0, 0):
            edges = [context.labels.new(n, frozen=True) for n in (before, after)]
            parts = [edges[0], axes.resolve(terms[dim]), edges[1]]
            joined = axes.concatenation(
                [p for p, n in zip(parts, (before, 1, after), strict=True) if n]
            )
            terms = _with(terms, dim, joined)
    return terms


# Look-ups and constants --------------------------------------------------------------------


@rule("embedding")
def embedding(context: Context, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    """Rows of a table by number: rows are told apart, columns are not."""
    table = context.settled(weight)
    axes.freeze(table[0])
    lead = [context.labels.new(term.size, frozen=True) for term in context.settled(indices)]
    return (*lead, context.labels.derive((1.0, table[1])))


@rule("index")
def index(context: Context, value: Value, indices: Sequence[Any]) -> Value:
    """Look-ups by tensors of indices along leading axes; other patterns have no rule."""
    chosen = [at for at, one in enumerate(indices) if one is not None]
    terms = context.settled(value)
    if chosen != list(range(len(chosen))) or context.shape is None:
        tensors = [one for one in indices if one is not None]
        return unknown(context, "index", [value, *tensors])
    axes.freeze(*terms[: len(chosen)])
    lead = len(context.shape) - (len(terms) - len(chosen))
    return (*context.fresh(context.shape[:lead]), *terms[len(chosen) :])


@rule("zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros", "new_ones",
      "new_full", "scalar_tensor", "empty_like")  # fmt: skip
def constant(context: Context, *_: Any, **__: Any) -> Value:
    """The same number everywhere."""
    assert context.shape is not None
    return tuple(_constant(context, size) for size in context.shape)


@rule("arange", "linspace", "eye", "tril_indices", "triu_indices")
def counting(context: Context, *_: Any, **__: Any) -> Value:
    """Numbers that depend on nothing but their place."""
    assert context.shape is not None
    return context.fresh(context.shape)


@rule("tril", "triu", "cumsum", "flip", "roll", "repeat", "tile", "repeat_interleave")
def positional(context: Context, value: Value, *_: Any, **__: Any) -> Value:
    """What depends on places along axes, which are therefore told apart."""
    assert context.shape is not None
    terms = context.settled(value)
    lead = len(context.shape) - len(terms)
    if not is_tensor(value):
        return context.fresh(context.shape)
    touched = (
        range(len(terms) - 2, len(terms))
        if context.operation.startswith("tri")
        else range(len(terms))
    )
    axes.freeze(*(terms[at] for at in touched))
    return tuple(
        terms[at - lead]
        if at >= lead and at - lead not in touched
        else context.labels.new(size, frozen=True)
        for at, size in enumerate(context.shape)
    )
