"""Labels of tensor axes, and how two of them are made to agree.

An axis is a product or a concatenation of smaller axes, down to *atoms*. Two axes that an
operation brings together must be made of the same atoms, so `unify` splits and joins atoms until
they are. What cannot be made to agree is frozen: nobody may then reorder it, which is always safe.

Every leaf of a label also has a *scale*: an unknown that says by what its channels may be
multiplied. Operations put equations on scales (`polo.alignment.scales` solves them).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Scale: TypeAlias = tuple[int, tuple[int, ...]]


class MismatchError(Exception):
    """Two axes that no common split can bring together."""


@dataclass(eq=False)
class Atom:
    """A set of channels that move together.

    Attributes:
        size: How many.
        frozen: Something tells its channels apart; they must stay where they are.
        split: A fixed size was asked of it (a view into heads, say), so it cannot grow.
        reduced: Something sums or normalises over it other than weights.
        bent: Something other than linear maps happens to its channels.
        origin: The view and the axis it was born in.
        bound: What it turned out to be made of.
    """

    size: int
    frozen: bool = False
    split: bool = False
    reduced: bool = False
    bent: bool = False
    origin: tuple[str, int] | None = None
    bound: "Term | None" = None


@dataclass(frozen=True, eq=False)
class Leaf:
    """An atom in a label, and the unknown scale of its channels there."""

    atom: Atom
    scale: Scale

    @property
    def size(self) -> int:
        """Length of the axis."""
        return self.atom.size


@dataclass(frozen=True, eq=False)
class Tree:
    """A product (row-major) or a concatenation of labels. The empty product has length one."""

    joined: bool
    parts: "tuple[Term, ...]"

    @property
    def size(self) -> int:
        """Length of the axis."""
        sizes = [part.size for part in self.parts]
        return sum(sizes) if self.joined else math.prod(sizes)


Term: TypeAlias = Leaf | Tree
ONE = Tree(joined=False, parts=())


def product(parts: Sequence[Term]) -> Term:
    """The row-major product of axes, in normal form.

    A leading concatenation is moved outwards, so that the same axis always has the same leaves.
    """
    flat: list[Term] = []
    for part in parts:
        inside = isinstance(part, Tree) and not part.joined
        flat.extend(part.parts if isinstance(part, Tree) and inside else [part])
    flat = [part for part in flat if part.size != 1]
    if len(flat) == 1:
        return flat[0]
    if flat and isinstance(flat[0], Tree):
        return concatenation([product([part, *flat[1:]]) for part in flat[0].parts])
    return Tree(joined=False, parts=tuple(flat))


def concatenation(parts: Sequence[Term]) -> Term:
    """The concatenation of axes, in normal form."""
    flat: list[Term] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Tree) and part.joined else [part])
    return flat[0] if len(flat) == 1 else Tree(joined=True, parts=tuple(flat))


def leaves(term: Term) -> Iterator[Leaf]:
    """The leaves of a label as it is now, in order."""
    resolved = resolve(term)
    if isinstance(resolved, Leaf):
        yield resolved
    else:
        for part in resolved.parts:
            yield from leaves(part)


def resolve(term: Term) -> Term:
    """A label with everything that is known about its atoms put in."""
    if term.size == 1:
        return ONE
    if isinstance(term, Leaf):
        if term.atom.bound is None:
            return term
        return resolve(_dressed(term.atom.bound, term.scale, [0]))
    parts = [resolve(part) for part in term.parts]
    return concatenation(parts) if term.joined else product(parts)


def _dressed(bound: Term, scale: Scale, count: list[int]) -> Term:
    """The structure of an atom, with the scale of one leaf handed down to its parts."""
    if isinstance(bound, Leaf):
        count[0] += 1
        return Leaf(bound.atom, (scale[0], (*scale[1], count[0] - 1)))
    parts = tuple(_dressed(part, scale, count) for part in bound.parts)
    return Tree(bound.joined, parts)


@dataclass
class Labels:
    """Makes atoms and scales, and keeps what was learned about scales.

    Attributes:
        equations: Sums of labels' scales that are zero, leaf by leaf.
        contracted: Labels that were summed over against weights or activations.
        kept: Labels that came out of an operation as an axis of its result.
    """

    equations: list[list[tuple[float, Term]]] = field(default_factory=list)
    contracted: list[Term] = field(default_factory=list)
    kept: list[Term] = field(default_factory=list)
    _scales: int = 0

    def scale(self) -> Scale:
        """A new unknown."""
        self._scales += 1
        return self._scales, ()

    def new(self, size: int, *, frozen: bool = False) -> Term:
        """A new axis."""
        return ONE if size == 1 else Leaf(Atom(size, frozen), self.scale())

    def derive(self, *sources: tuple[float, Term]) -> Term:
        """A label like the first one, whose scale is the sum of the given multiples."""
        self.kept.extend(term for _, term in sources)
        made = self._renewed(resolve(sources[0][1]))
        self.equations.append([(-1.0, made), *sources])
        return made

    def _renewed(self, term: Term) -> Term:
        if isinstance(term, Leaf):
            return Leaf(term.atom, self.scale())
        return Tree(term.joined, tuple(self._renewed(part) for part in term.parts))

    def zero(self, *terms: Term) -> None:
        """These may not be scaled."""
        self.equations.extend([(1.0, term)] for term in terms)

    def equal(self, one: Term, other: Term) -> None:
        """These are scaled alike."""
        self.kept.extend([one, other])
        self.equations.append([(1.0, one), (-1.0, other)])


def mark(flag: str, *terms: Term) -> None:
    """Set a flag on all atoms of these labels."""
    for term in terms:
        for leaf in leaves(term):
            setattr(leaf.atom, flag, True)


def freeze(*terms: Term) -> None:
    """Forbid any change of order in these axes."""
    mark("frozen", *terms)


def unify(one: Term, other: Term) -> None:
    """Make two axes of the same length agree; freeze both if that cannot be."""
    try:
        _unify(one, other)
    except MismatchError:
        freeze(one, other)


def _unify(one: Term, other: Term) -> None:
    one, other = resolve(one), resolve(other)
    if one.size != other.size:
        raise MismatchError
    if one.size == 1:
        return
    if isinstance(one, Leaf):
        _bind(one.atom, other)
    elif isinstance(other, Leaf):
        _bind(other.atom, one)
    else:
        cut = cut_sum if one.joined or other.joined else cut_product
        firsts = [tree.parts[0].size for tree in (one, other) if tree.joined]
        at = min(firsts or (one.parts[0].size, other.parts[0].size))
        (head, tail), (other_head, other_tail) = cut(one, at), cut(other, at)
        _unify(head, other_head)
        _unify(tail, other_tail)


def _bind(atom: Atom, term: Term) -> None:
    found = [leaf.atom for leaf in leaves(term)]
    if isinstance(term, Leaf) and term.atom is atom:
        return
    if atom in found:
        raise MismatchError
    for other in found:
        _inherit(other, atom)
    atom.bound = term


def _inherit(heir: Atom, atom: Atom) -> None:
    heir.frozen |= atom.frozen
    heir.split |= atom.split
    heir.reduced |= atom.reduced
    heir.bent |= atom.bent


def _divide(leaf: Leaf, sizes: tuple[int, int], *, joined: bool) -> tuple[Term, Term]:
    """Split a leaf's atom in two, for good."""
    atom = leaf.atom
    parts = [Atom(size) for size in sizes]
    for part in parts:
        _inherit(part, atom)
        part.split = True
    atom.bound = Tree(joined, tuple(Leaf(part, (0, ())) for part in parts))
    dressed = _dressed(atom.bound, leaf.scale, [0])
    assert isinstance(dressed, Tree)
    return dressed.parts[0], dressed.parts[1]


def cut_product(term: Term, size: int) -> tuple[Term, Term]:
    """An axis as a product whose first factor has the given size."""
    term = resolve(term)
    if size == 1:
        return ONE, term
    if size == term.size:
        return term, ONE
    if term.size % size or (isinstance(term, Tree) and term.joined):
        raise MismatchError
    if isinstance(term, Leaf):
        return _divide(term, (size, term.size // size), joined=False)
    first, rest = term.parts[0], product(term.parts[1:])
    if size % first.size == 0:
        head, tail = cut_product(rest, size // first.size)
        return product([first, head]), tail
    head, tail = cut_product(first, size)
    return head, product([tail, rest])


def cut_sum(term: Term, size: int) -> tuple[Term, Term]:
    """An axis as a concatenation whose first part has the given size."""
    term = resolve(term)
    if not 0 < size < term.size:
        raise MismatchError
    if isinstance(term, Leaf):
        return _divide(term, (size, term.size - size), joined=True)
    first, rest = term.parts[0], term.parts[1:]
    if not term.joined:
        inner = product(rest).size
        if size % inner:
            raise MismatchError
        head, tail = cut_sum(first, size // inner)
        return product([head, *rest]), product([tail, *rest])
    if size == first.size:
        return first, concatenation(rest)
    if size > first.size:
        head, tail = cut_sum(concatenation(rest), size - first.size)
        return concatenation([first, head]), tail
    head, tail = cut_sum(first, size)
    return head, concatenation([tail, *rest])
