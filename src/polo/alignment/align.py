"""Found weights, brought into the frame of a reference checkpoint.

Everything here depends on the found weights, the reference and the wiring alone; no mark is ever
seen. A mark may be read after alignment only if the reference is older than the mark: then bits
of unrelated weights still match with probability one half.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polo.alignment import dummies
from polo.alignment.dummies import Pruned
from polo.alignment.frame import Array, Frame, sizes_of
from polo.alignment.matching import Matcher
from polo.alignment.rotation import Rotator
from polo.alignment.scaling import Rescaler
from polo.alignment.wiring import Wiring
from polo.errors import WeightsError

_ROUNDS = 10
_SWEEPS = 8
_SETTLED = 0.01
_MOST_WIDER = 64


@dataclass(frozen=True)
class AlignedGroup:
    """What happened to one group.

    Attributes:
        group: Its number in the wiring.
        tensor: The first tensor it appears in, to tell people which it is.
        found: Channels in the found model.
        size: Channels in the reference.
        dropped: Channels taken out since nobody read them.
        merged: Channels merged with equal ones.
        cosine: Mean cosine between matched channels and the reference's.
        scaled: Whether it can be scaled, so that factors were estimated.
    """

    group: int
    tensor: str
    found: int
    size: int
    dropped: int
    merged: int
    cosine: float
    scaled: bool


@dataclass(frozen=True)
class Aligned:
    """Found weights in the reference's frame.

    Attributes:
        arrays: The weights, in the reference's shapes.
        groups: What happened to each group that could be reordered.
        rounds: Rounds until nothing changed.
        settled: Whether nothing changed in the last round.
    """

    arrays: dict[str, Array]
    groups: tuple[AlignedGroup, ...]
    rounds: int
    settled: bool


def align(found: Mapping[str, Array], reference: Mapping[str, Array], wiring: Wiring) -> Aligned:
    """Undo permutations, scalings and dummy neurons against a reference.

    Args:
        found: Weights of unknown origin, by the reference's names; groups may be wider.
        reference: An older checkpoint of the owner's.
        wiring: The architecture's wiring (`trace`).
    """
    with np.errstate(all="ignore"):
        return _align(found, reference, wiring)


def _align(found: Mapping[str, Array], reference: Mapping[str, Array], wiring: Wiring) -> Aligned:
    theirs = _framed(reference, wiring)
    if tuple(theirs.sizes) != wiring.sizes:
        raise WeightsError(
            "the reference is not of the architecture that was traced",
            advice="Trace the model that the reference checkpoint belongs to.",
        )
    ours = _framed(found, wiring)
    for group, size in zip(wiring.groups, ours.sizes, strict=True):
        if size > _MOST_WIDER * group.size:
            raise WeightsError(
                f"{size} channels where the reference has {group.size}",
                place=group.places[0].tensor,
                advice=f"Alignment takes at most {_MOST_WIDER} times as many.",
            )
    sizes = tuple(ours.sizes)
    pruned = dummies.prune(ours, wiring.sizes)
    matcher = Matcher(ours, theirs)
    rescaler = Rescaler(matcher)
    _first_pass(matcher, rescaler)
    rounds, settled = _until_settled(matcher, rescaler)
    _sweep(matcher, rescaler)
    groups = _report(matcher, sizes, pruned)
    return Aligned(_finished(ours, found, wiring), groups, rounds, settled)


def _framed(arrays: Mapping[str, Array], wiring: Wiring) -> Frame:
    checked = _checked(arrays, wiring)
    return Frame(wiring, checked, sizes_of(wiring, checked))


def _checked(arrays: Mapping[str, Array], wiring: Wiring) -> dict[str, Array]:
    """Copies of the wired tensors, as floats; refused if one is missing or not finite."""
    checked = {}
    for tensor in wiring.tensors:
        array = arrays.get(tensor.name)
        if array is None:
            raise WeightsError("this tensor is missing", place=tensor.name)
        if array.ndim != len(tensor.shape):
            raise WeightsError(
                f"{array.ndim} axes where the architecture has {len(tensor.shape)}",
                place=tensor.name,
            )
        if array.dtype.kind not in "fiub":
            raise WeightsError(f"values of type {array.dtype} are no weights", place=tensor.name)
        if array.dtype == np.float16 or array.dtype.kind != "f":
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise WeightsError("the weights are not finite (NaN or infinity)", place=tensor.name)
        checked[tensor.name] = np.array(array, order="C")
    return checked


def _first_pass(matcher: Matcher, rescaler: Rescaler) -> None:
    """Match every group once, best known first, and undo its scaling or rotation at once."""
    left, rotator = matcher.heads, Rotator(matcher)
    while left:
        best = max(left, key=lambda n: (matcher.weight(n), -n))
        left.remove(best)
        matcher.match(best)
        _rescale(matcher, rescaler, best)
        for one in matcher.found.wiring.rotations:
            if one.group in (best, *matcher.children.get(best, [])):
                rotator.turn(one)


def _rescale(matcher: Matcher, rescaler: Rescaler, group: int) -> None:
    family = {group, *matcher.children.get(group, [])}
    for one in matcher.found.wiring.scalings:
        if one.group in family:
            rescaler.rescale(one)


def _until_settled(matcher: Matcher, rescaler: Rescaler) -> tuple[int, bool]:
    for done in range(1, _ROUNDS + 1):
        changed = False
        for group in matcher.heads:
            if matcher.match(group):
                _rescale(matcher, rescaler, group)
                changed = True
        if not changed:
            return done, True
    return _ROUNDS, False


def _sweep(matcher: Matcher, rescaler: Rescaler) -> None:
    for _ in range(_SWEEPS):
        changes = [rescaler.rescale(one) for one in matcher.found.wiring.scalings]
        if max(changes, default=0.0) < _SETTLED:
            break


def _report(
    matcher: Matcher, sizes: tuple[int, ...], pruned: dict[int, Pruned]
) -> tuple[AlignedGroup, ...]:
    wiring = matcher.found.wiring
    scaled = {one.group for one in wiring.scalings}
    report = []
    for number, group in enumerate(wiring.groups):
        if group.permutable:
            gone = pruned.get(number, Pruned())
            report.append(
                AlignedGroup(
                    group=number,
                    tensor=group.places[0].tensor,
                    found=sizes[number],
                    size=group.size,
                    dropped=gone.dropped,
                    merged=gone.merged,
                    cosine=matcher.cosine(number),
                    scaled=number in scaled,
                )
            )
    return tuple(report)


def _finished(frame: Frame, found: Mapping[str, Array], wiring: Wiring) -> dict[str, Array]:
    """All arrays in the types they came in; what is not wired stays as it was found."""
    result = dict(found)
    for name, array in frame.arrays.items():
        result[name] = array.astype(found[name].dtype, copy=False)
    for alias, name in wiring.ties:
        if alias in result:
            result[alias] = result[name]
    return result
