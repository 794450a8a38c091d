"""From a model's graph to its wiring: run the rules over every operation, then gather groups."""

import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from polo.alignment import arithmetic, axes, scales, shaping
from polo.alignment.axes import Atom, Leaf, Term
from polo.alignment.rules import RULES, Axes, Context, Stack, Value, is_tensor, unknown
from polo.alignment.wiring import Axis, Group, Place, Power, Scaling, Tensor, Wiring
from polo.errors import WeightsError
from polo.weights.checkpoint import canonical_names

# Importing them registers their rules.
assert arithmetic
assert shaping

_PASSES = 4
_MOST_BOXES = 4096
_STUMBLES = (TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)


@dataclass
class Traced:
    """A graph whose tensors have labels."""

    context: Context
    state: dict[str, Axes] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)


def trace_model(model: torch.nn.Module, example_inputs: tuple[Any, ...]) -> Wiring:
    """See `polo.alignment.trace`."""
    program = _exported(model, example_inputs)
    names, ties = _names(model)
    told_apart: set[tuple[str, int]] = set()
    for _ in range(_PASSES):
        traced = Traced(Context(told_apart=set(told_apart)))
        _propagate(program, names, traced)
        # A slice taken of an axis is seen only after the view that made the axis.
        if traced.context.told_apart == told_apart:
            break
        told_apart = traced.context.told_apart
    return _gather(traced, ties)


def _exported(model: torch.nn.Module, example_inputs: tuple[Any, ...]) -> Any:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return torch.export.export(model, example_inputs, strict=False)
    except Exception as error:
        raise WeightsError(
            f"torch.export cannot trace this model: {str(error).strip().splitlines()[0][:200]}"
            if str(error).strip()
            else f"torch.export cannot trace this model ({type(error).__name__})",
            place=type(model).__name__,
            advice="Pass inputs of the right shapes, and make the model's forward free of "
            "branches on values; torch.export's own documentation lists what it supports.",
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode


def _names(model: torch.nn.Module) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """For each name in the state, the one that stands for the tensor; and the ties."""
    state = model.state_dict(keep_vars=True)
    canonical = canonical_names(list(state))
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    ties = []
    for name in sorted(state, key=lambda name: canonical[name].encode()):
        short = canonical[name]
        names[name] = first.setdefault(id(state[name]), short)
        if names[name] != short:
            ties.append((short, names[name]))
    return names, ties


def _propagate(program: Any, names: dict[str, str], traced: Traced) -> None:
    signature = program.graph_signature
    lifted = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    environment: dict[Any, Value] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            name = names.get(lifted.get(node.name, ""))
            environment[node] = _placeholder(traced, node, name)
        elif node.op == "call_function":
            arguments, named = torch.fx.map_arg((node.args, node.kwargs), environment.get)
            environment[node] = _apply(traced, node, tuple(arguments), dict(named))
        elif node.op == "output":
            for source in node.all_input_nodes:
                for value in _tensors(environment.get(source)):
                    axes.freeze(*traced.context.settled(value))
        traced.values.extend(_tensors(environment.get(node)))
    traced.values.extend(traced.context.inner)


def _placeholder(traced: Traced, node: Any, name: str | None) -> Value:
    found = node.meta.get("val")
    if not isinstance(found, torch.Tensor):
        return found
    shape = tuple(int(size) for size in found.shape)
    if name is None:
        return traced.context.fresh(shape)
    if name not in traced.state:
        traced.state[name] = traced.context.fresh(shape, frozen=False)
    return traced.state[name]


def _apply(traced: Traced, node: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Value:
    context = traced.context
    if node.target is operator.getitem:
        value = arguments[0]
        whole = is_tensor(value) or value is None
        return value if whole else value[arguments[1]]
    found = node.meta.get("val")
    context.node = node.name
    context.operation = _operation(node.target)
    context.shape = tuple(map(int, found.shape)) if isinstance(found, torch.Tensor) else None
    if rule := RULES.get(context.operation):
        try:
            value = rule(context, *arguments, **named)
        except _STUMBLES:
            # A form of the operation that the rule does not know.
            pass
        else:
            if _fits(value, found):
                return value
    tensors = [t for value in (*arguments, *named.values()) for t in _tensors(value)]
    if isinstance(found, tuple | list):
        unknown(context, context.operation, tensors)
        return tuple(
            context.fresh(tuple(map(int, one.shape))) if isinstance(one, torch.Tensor) else None
            for one in found
        )
    return unknown(context, context.operation, tensors)


def _operation(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    name = schema.name if schema is not None else getattr(target, "__name__", str(target))
    bare = str(name).rpartition("::")[2]
    return bare if bare.startswith("_") else bare.rstrip("_")


def _fits(value: Value, found: Any) -> bool:
    """Whether a rule's labels have the shape that the result really has."""
    if not isinstance(found, torch.Tensor):
        return True
    if isinstance(value, Stack):
        sizes = [term.size for term in value.slices[0]]
        sizes.insert(value.axis, len(value.slices))
    elif is_tensor(value):
        sizes = [term.size for term in value]
    else:
        return False
    return sizes == [int(size) for size in found.shape]


def _tensors(value: Value) -> Iterator[Value]:
    if is_tensor(value):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


# From labels to groups ---------------------------------------------------------------------


def _gather(traced: Traced, ties: list[tuple[str, str]]) -> Wiring:
    context = traced.context
    numbers: dict[Atom, int] = {}
    for terms in traced.state.values():
        for leaf in itertools.chain.from_iterable(map(axes.leaves, terms)):
            numbers.setdefault(leaf.atom, len(numbers))
    tensors = tuple(
        Tensor(name, tuple(t.size for t in terms), tuple(_axis(t, numbers) for t in terms))
        for name, terms in sorted(traced.state.items())
    )
    parents = _parents(traced, numbers)
    places = _places(traced, numbers)
    groups = tuple(
        _group(atom, [place for _, place in places[number]], parents.get(atom), numbers)
        for atom, number in numbers.items()
    )
    scalings = tuple(_scalings(context, numbers, places, groups, tensors))
    return Wiring(groups, tensors, scalings, tuple(ties), tuple(sorted(context.unknown)))


def _axis(term: Term, numbers: dict[Atom, int]) -> Axis:
    resolved = axes.resolve(term)
    if isinstance(resolved, Leaf):
        return Axis(joined=False, parts=(numbers[resolved.atom],))
    parts = tuple(
        numbers[part.atom] if isinstance(part, Leaf) else _axis(part, numbers)
        for part in resolved.parts
    )
    return Axis(resolved.joined, parts)


def _places(traced: Traced, numbers: dict[Atom, int]) -> dict[int, list[tuple[axes.Scale, Place]]]:
    """Every appearance of every group, with the unknown scale it has there."""
    read = _keys(traced.context.labels.contracted)
    made = _keys(traced.context.labels.kept)
    roles = {(True, False): "out", (False, True): "in", (True, True): "both"}
    places: dict[int, list[tuple[axes.Scale, Place]]] = {n: [] for n in numbers.values()}
    for name, terms in sorted(traced.state.items()):
        for axis, term in enumerate(terms):
            for at, segment in enumerate(_leaf_segments(axes.resolve(term))):
                for factor, leaf in enumerate(segment):
                    role = roles.get((leaf.scale in read, leaf.scale in made), "none")
                    place = Place(name, axis, at, factor, role)
                    places[numbers[leaf.atom]].append((leaf.scale, place))
    return places


def _keys(terms: list[Term]) -> set[axes.Scale]:
    return {leaf.scale for term in terms for leaf in axes.leaves(term)}


def _leaf_segments(term: Term) -> list[list[Leaf]]:
    """The leaves of each segment of an axis, as `wiring.segments` counts them."""
    if isinstance(term, Leaf):
        return [[term]]
    inner = [_leaf_segments(part) for part in term.parts]
    if term.joined:
        return list(itertools.chain.from_iterable(inner))
    return [list(itertools.chain.from_iterable(mix)) for mix in itertools.product(*inner)]


def _group(atom: Atom, places: list[Place], parent: Atom | None, numbers: dict[Atom, int]) -> Group:
    roles = {place.role for place in places}
    free = not (atom.frozen or atom.split or atom.reduced)
    return Group(
        size=atom.size,
        permutable=not atom.frozen,
        extendable=free and roles == {"in", "out"},
        linear=not (atom.frozen or atom.bent or atom.reduced),
        parent=numbers[parent] if parent is not None else None,
        places=tuple(places),
    )


def _parents(traced: Traced, numbers: dict[Atom, int]) -> dict[Atom, Atom]:
    """For each group the one that orders it index by index, if there is one.

    It must stand beside the group, once, wherever the group stands in any tensor of the graph.
    """
    beside: dict[Atom, set[Atom]] = {}
    for value in traced.values:
        for atoms in _boxes(value):
            for atom in set(atoms):
                single = (
                    {o for o in atoms if atoms.count(o) == 1} if atoms.count(atom) == 1 else set()
                )
                beside[atom] = beside.get(atom, single) & single - {atom}
    crossed = {atom for one, two in traced.context.crossed for atom in _atoms(one) & _atoms(two)}
    parents: dict[Atom, Atom] = {}
    for atom, number in numbers.items():
        if atom.frozen:
            continue
        found = [o for o in beside.get(atom, set()) if o in numbers and o not in crossed]
        outer = [o for o in found if atom not in beside.get(o, set()) or numbers[o] < number]
        if outer:
            parents[atom] = max(outer, key=lambda o: (o.size, -numbers[o]))
    return {atom: parent for atom, parent in parents.items() if parent not in parents}


def _atoms(term: Term) -> set[Atom]:
    return {leaf.atom for leaf in axes.leaves(term)}


def _boxes(value: Value) -> Iterator[list[Atom]]:
    for terms in value.slices if isinstance(value, Stack) else [value]:
        inner = [_leaf_segments(axes.resolve(term)) for term in terms]
        mixes = itertools.islice(itertools.product(*inner), _MOST_BOXES)
        yield from ([leaf.atom for part in mix for leaf in part] for mix in mixes)


def _scalings(
    context: Context,
    numbers: dict[Atom, int],
    places: dict[int, list[tuple[axes.Scale, Place]]],
    groups: tuple[Group, ...],
    tensors: tuple[Tensor, ...],
) -> Iterator[Scaling]:
    offsets = {leaf.scale: eps for term, eps in context.norms for leaf in axes.leaves(term)}
    above = {group.parent for group in groups}
    equations = scales.expand(context.labels.equations)
    widths = {tensor.name: math.prod(tensor.shape) for tensor in tensors}
    for atom, number in numbers.items():
        if atom.frozen or number in above:
            continue
        ordered = sorted(places[number], key=lambda pair: _standing(pair[1], widths))
        unknowns = dict.fromkeys(scale for scale, _ in ordered)
        for vector in scales.solutions(equations.get(atom, []), list(unknowns)):
            powers = tuple(
                Power(place, vector[scale], offsets.get(scale, 0.0))
                for scale, place in ordered
                if scale in vector
            )
            yield Scaling(number, powers)


def _standing(place: Place, widths: dict[str, int]) -> tuple[bool, int]:
    """Places that make channels, and those with many weights, come first."""
    return place.role != "in", -widths[place.tensor]
