"""Finding tensors whose names were changed, without anybody's weights to compare with.

Renaming is the least that a thief does. What names leave open is told by shape and by order: of the
tensors of one shape that are left on either side, the first is taken for the first, and so on, if
there are equally many. The rule looks at no weight, so it knows no mark, and costs no evidence.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from polo.ownership.matching import Match, Matching, bare
from polo.protocol.carrier import Carrier
from polo.weights.found_model import FoundModel

Shape = tuple[int, ...]

_NUMBER = re.compile(r"(\d{1,9})")


def with_order(matching: Matching, carrier: Carrier, found: FoundModel) -> Matching:
    """A matching by name, with what shape and order add to it."""
    tensors = carrier.layout.tensors
    left: dict[Shape, list[int]] = defaultdict(list)
    for at in sorted(carrier.tensors, key=lambda at: _natural(tensors[at].name)):
        if at not in matching.matches:
            left[bare(tensors[at].shape)].append(at)
    if not left:
        return matching
    taken = {match.name for match in matching.matches.values()}
    # Of a layout's own tensors some carry nothing; what is called like them is none of the others.
    taken |= {tensor.name for at, tensor in enumerate(tensors) if at not in carrier.tensors}
    there = _by_shape(found, taken)
    more = {at: match for shape, own in left.items() for at, match in _pairs(shape, own, there)}
    matches = dict(matching.matches) | more
    sizes = {at: tensors[at].elements for at in carrier.tensors}
    share = sum(sizes[at] for at in matches) / max(1, sum(sizes.values()))
    return Matching(matches, share, matching.by_content, matching.log2_choices)


def _pairs(
    shape: Shape, own: list[int], there: Mapping[Shape, list[str]]
) -> Iterable[tuple[int, Match]]:
    """Tensors of a shape with their places, written either way round."""
    straight, turned = there.get(shape, []), there.get(shape[::-1], [])
    if len(straight) == len(own):
        return zip(own, map(Match, straight), strict=True)
    if len(shape) == 2 and not straight and len(turned) == len(own):
        return zip(own, (Match(name, transposed=True) for name in turned), strict=True)
    return ()


def _by_shape(found: FoundModel, taken: set[str]) -> dict[Shape, list[str]]:
    names: dict[Shape, list[str]] = defaultdict(list)
    for name in sorted(found.tensors, key=_natural):
        tensor = found.tensors[name]
        if name not in taken and not tensor.refusal:
            names[bare(tensor.shape)].append(name)
    return names


def _natural(name: str) -> list[tuple[int, str]]:
    """Names in the order of the numbers in them.

    >>> sorted(["10.weight", "9.weight", "a.2"], key=_natural)
    ['9.weight', '10.weight', 'a.2']
    """
    parts = _NUMBER.split(name)
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)]
