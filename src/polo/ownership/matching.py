"""Which tensor of a found model is which tensor of the claimant's layout.

Names and shapes come first: they do not depend on any mark, so they cost nothing. What they leave
open is decided by content, by likeness to the claimant's newest checkpoint. That checkpoint carries
the marks, so a matching chosen by it is charged: whatever the choice, it is one of a known number
of assignments, and the combined p-value is corrected for all of them.
"""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from polo.ownership.sources import floats
from polo.protocol.carrier import Carrier
from polo.weights.checkpoint import Checkpoint
from polo.weights.found_model import FoundModel, Values

SAMPLE = 2**14
"""Most weights of a tensor that likeness is judged by."""

LEAST_SAMPLE = 1024

SWAPPED = 0.3
"""How much better than by name content must fit, on average, before names are not believed."""

MOST_PAIRS = 2**21
"""Pairs of tensors that are compared at most, a tensor as 64 of them; the rest goes by name."""

MOST_KEPT = 256
"""Samples of found tensors that are kept, 128 KiB each at most."""

_HUGE = 1e30


@dataclass(frozen=True)
class Match:
    """Where one carrier tensor was found."""

    name: str
    transposed: bool = False


@dataclass(frozen=True)
class Matching:
    """Where the carrier was found.

    Attributes:
        matches: By index in the layout.
        coverage: Part of the carrier's weights that was found.
        by_content: How many tensors were told by content.
        log2_choices: log2 of the number of assignments that content chose among.
    """

    matches: Mapping[int, Match]
    coverage: float
    by_content: int
    log2_choices: float


class Matcher:
    """Finds the tensors of claimants in one found model."""

    def __init__(self, found: FoundModel) -> None:
        self._found = found
        self._shapes = _by_shape(found)
        self._samples = _Samples(found)

    def match(self, carrier: Carrier, reference: Checkpoint | None) -> Matching:
        """Find a carrier's tensors.

        Args:
            carrier: The claimant's carrier.
            reference: The claimant's newest checkpoint, to compare content with; None if it is
                not here.
        """
        named = _by_name(carrier, self._found, self._shapes)
        if reference is None:
            return _matching(carrier, named, 0, 0.0)
        likeness = _Likeness(carrier, self._samples, reference)
        spent = {where.name: at for at, where in named.items()}
        chosen, told, choices, asked, left = dict(named), 0, 0.0, False, MOST_PAIRS
        classes = [self._open(carrier, indices, named) for indices in _classes(carrier).values()]
        # Small classes first: decoys of one shape must not keep the others from being looked at.
        for indices, fitting in sorted(classes, key=lambda item: _pairs(*item)):
            if not indices:
                continue
            own = {at: named[at].name for at in indices if at in named}
            members = set(indices)
            candidates = [name for name in fitting if spent.get(name, indices[0]) in members]
            if not candidates or (len(own) == len(indices) and len(candidates) == 1):
                continue
            cost = _pairs(indices, candidates)
            if cost > left:
                continue
            asked, left = True, left - cost
            choices += _log2_arrangements(len(indices), len(candidates))
            better = likeness.assign(indices, candidates, own)
            if better is not None:
                chosen = {at: where for at, where in chosen.items() if at not in members} | better
                told += len(better)
        # Half of the tries is set aside for going by name alone, the other half for the rest.
        return _matching(carrier, chosen, told, (1 + choices if told else 1.0) if asked else 0.0)

    def _open(
        self, carrier: Carrier, indices: list[int], named: Mapping[int, Match]
    ) -> tuple[list[int], list[str]]:
        """A class and what could be one of it; a flattened tensor can only go by its name."""
        fitting = list(_fitting(carrier.layout.tensors[indices[0]].shape, self._shapes))
        known = set(fitting)
        return [at for at in indices if at not in named or named[at].name in known], fitting


def _pairs(tensors: list[int], candidates: list[str]) -> int:
    """Pairs that are compared, a tensor as 64 of them."""
    few, many = sorted((len(tensors), len(candidates)))
    return many * max(64, few)


class MatchedSource:
    """A found model read at the places of the claimant's layout."""

    def __init__(self, found: FoundModel, matching: Matching) -> None:
        self._found = found
        self._matches = matching.matches
        self._turned: dict[int, Values] = {}

    def weights(self, tensor: int, start: int, stop: int) -> Values | None:
        """See `polo.ownership.sources.WeightSource`."""
        where = self._matches.get(tensor)
        if where is None:
            return None
        if not where.transposed:
            return self._found.read(where.name, start, stop)
        if tensor not in self._turned:
            whole = self._found.values(where.name)
            turned = np.ascontiguousarray(whole.reshape(bare(whole.shape)).T)
            self._turned[tensor] = turned.reshape(-1)
        return self._turned[tensor][start:stop]


def _by_name(
    carrier: Carrier, found: FoundModel, shapes: Mapping[tuple[int, ...], list[str]]
) -> dict[int, Match]:
    """Tensors whose name, or an unambiguous end of it, and shape are right."""
    names = {at: [carrier.layout.tensors[at].name] for at in carrier.tensors}
    for tie in carrier.layout.ties:
        names.get(carrier.layout.index[tie.name], []).append(tie.alias)
    exact: dict[int, str] = {}
    for at, known in names.items():
        there = (name for name in known if _fits(found, name, carrier.layout.tensors[at].shape))
        if first := next(there, None):
            exact[at] = first
    taken = set(exact.values())
    by_shape: dict[tuple[int, ...], dict[str, int]] = defaultdict(dict)
    for at in names.keys() - exact.keys():
        tensor = carrier.layout.tensors[at]
        by_shape[bare(tensor.shape)][tensor.name] = at
    ends: dict[int, str] = {}
    for shape, wanted in by_shape.items():
        ends |= _by_end(wanted, [name for name in shapes.get(shape, ()) if name not in taken])
    return {at: Match(name) for at, name in (exact | ends).items()}


def _by_end(wanted: Mapping[str, int], there: list[str]) -> dict[int, str]:
    """Pairs of which one name is the end of the other, where that leaves no doubt."""
    pairs = [(wanted[end], name) for name in there for end in _ends(name) if end in wanted]
    known = set(there)
    pairs += [(at, end) for name, at in wanted.items() for end in _ends(name) if end in known]
    tensors = Counter(at for at, _ in pairs)
    pairs = [(at, name) for at, name in pairs if tensors[at] == 1]
    names = Counter(name for _, name in pairs)
    return {at: name for at, name in pairs if names[name] == 1}


def _ends(name: str) -> Iterator[str]:
    """What is left of a name after each of its dots."""
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


def _by_shape(found: FoundModel) -> dict[tuple[int, ...], list[str]]:
    """Names of the tensors that can be read, by shape."""
    shapes: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, tensor in found.tensors.items():
        if not tensor.refusal:
            shapes[bare(tensor.shape)].append(name)
    return shapes


def bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of length one, which change nothing about the order of weights.

    >>> bare((1, 64, 3, 3)), bare((10, 128, 1, 1))
    ((64, 3, 3), (10, 128))
    """
    return tuple(size for size in shape if size != 1)


def _fits(found: FoundModel, name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this name holds these weights in this order, flattened or not."""
    tensor = found.tensors.get(name)
    if tensor is None or tensor.refusal:
        return False
    return bare(tensor.shape) in (bare(shape), (math.prod(shape),))


def _fitting(shape: tuple[int, ...], shapes: Mapping[tuple[int, ...], list[str]]) -> Iterator[str]:
    """Found tensors that could be one of this shape, whichever way round a matrix is written."""
    shape = bare(shape)
    yield from shapes.get(shape, ())
    if len(shape) == 2 and shape[0] != shape[1]:
        yield from shapes.get(shape[::-1], ())


def _classes(carrier: Carrier) -> dict[tuple[int, ...], list[int]]:
    """Carrier tensors by shape, whichever way round a matrix is written."""
    classes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at in carrier.tensors:
        shape = bare(carrier.layout.tensors[at].shape)
        classes[tuple(sorted(shape)) if len(shape) == 2 else shape].append(at)
    return classes


class _Samples:
    """The beginnings of found tensors, at length one; kept for the next claimant."""

    def __init__(self, found: FoundModel) -> None:
        self._found = found
        self.unit = functools.lru_cache(MOST_KEPT)(self._unit)

    def shape(self, name: str) -> tuple[int, ...]:
        return bare(self._found.tensors[name].shape)

    def _unit(self, name: str, size: int, turned: bool) -> Values:
        if turned:
            whole = self._found.values(name).reshape(self.shape(name))
            return _unit(whole.T.reshape(-1)[:size])
        return _unit(self._found.read(name, 0, size))


class _Likeness:
    """Cosines between the claimant's tensors and found ones."""

    def __init__(self, carrier: Carrier, found: _Samples, reference: Checkpoint) -> None:
        self._tensors = carrier.layout.tensors
        self._found = found
        self._reference = reference

    def assign(
        self, indices: list[int], candidates: list[str], named: Mapping[int, str]
    ) -> dict[int, Match] | None:
        """The assignment of a class by content; None where names already say as much."""
        straight = self._table(indices, candidates, turned=False)
        place = {name: at for at, name in enumerate(candidates)}
        by_name = sum(straight[row, place[named[at]]] for row, at in enumerate(indices)
                      if at in named)  # fmt: skip
        # Names settle it where they leave no tensor, or no candidate, over.
        settled = len(named) in (len(indices), len(candidates))
        if settled and len(named) - by_name < SWAPPED * len(named):
            return None
        turned = self._table(indices, candidates, turned=True)
        scores = np.maximum(straight, turned)
        pairs = _likeliest(scores)
        gained = sum(scores[row, column] for row, column in pairs) - by_name
        if settled and gained < SWAPPED * len(named):
            return None
        return {
            indices[row]: Match(
                candidates[column], bool(turned[row, column] > straight[row, column])
            )
            for row, column in pairs
        }

    def _table(self, indices: list[int], candidates: list[str], *, turned: bool) -> Values:
        """Cosines by tensor and candidate; −1 where the shape does not fit this way round."""
        size = min(self._tensors[indices[0]].elements, max(LEAST_SAMPLE, SAMPLE // len(indices)))
        own = np.stack([_unit(floats(self._reference, at, 0, size)) for at in indices])
        table = np.full((len(indices), len(candidates)), -1.0)
        for column, name in enumerate(candidates):
            shape = self._found.shape(name)
            rows = [
                row
                for row, at in enumerate(indices)
                if bare(self._tensors[at].shape) == (shape[::-1] if turned else shape)
            ]
            if rows and not (turned and len(shape) != 2):
                table[rows, column] = own[rows] @ self._found.unit(name, size, turned)
        return table


def _likeliest(scores: Values) -> list[tuple[int, int]]:
    """Pairs of row and column, the likeliest first, each side once."""
    pairs: list[tuple[int, int]] = []
    rows, columns = set(), set()
    most = min(scores.shape)
    for flat in np.argsort(-scores, axis=None, kind="stable"):
        row, column = divmod(int(flat), scores.shape[1])
        if row not in rows and column not in columns and scores[row, column] > -1:
            pairs.append((row, column))
            rows.add(row)
            columns.add(column)
            if len(pairs) == most:
                break
    return pairs


def _log2_arrangements(tensors: int, places: int) -> float:
    """log2 of the ways to give places to tensors, each either way round."""
    most, least = max(tensors, places), min(tensors, places)
    ways = math.lgamma(most + 1) - math.lgamma(most - least + 1)
    return ways / math.log(2) + least


def _unit(values: Values) -> Values:
    finite = np.clip(np.nan_to_num(values.astype(np.float64)), -_HUGE, _HUGE)
    norm = float(np.linalg.norm(finite))
    return finite / norm if norm > 0 else finite


def _matching(
    carrier: Carrier, matches: Mapping[int, Match], by_content: int, log2_choices: float
) -> Matching:
    sizes = {at: carrier.layout.tensors[at].elements for at in carrier.tensors}
    share = sum(sizes[at] for at in matches) / max(1, sum(sizes.values()))
    return Matching(dict(matches), share, by_content, log2_choices)
