"""Copies of a live state, and how far two of them are apart: did a step depend on a sample?"""

import math
from collections.abc import Iterable, Iterator

import torch

from polo.evidence.replay.state import Snapshot, Tensors, norms_of


class Copies:
    """Copies of model and optimizer on their device; their memory is used again.

    Args:
        kept: Whether memory is kept for later copies.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._taken: list[Snapshot] = []
        self._spare: list[Snapshot] = []

    @torch.no_grad()
    def take(self, live: Snapshot) -> Snapshot:
        """A copy of live tensors, on the current stream of their device."""
        copy = self._room(live)
        self._taken.append(copy)
        copy_into(copy, live)
        return copy

    def drop(self) -> None:
        """Drop all copies: what takes their memory next may change them."""
        if self._kept:
            self._spare += self._taken
        self._taken = []

    def _room(self, live: Snapshot) -> Snapshot:
        while self._spare:
            spare = self._spare.pop()
            if all(_kinds(old) == _kinds(new) for old, new in zip(spare, live, strict=True)):
                return spare
        model, rest = (
            {name: torch.empty_like(tensor) for name, tensor in side.items()} for side in live
        )
        return model, rest


@torch.no_grad()
def copy_into(target: Snapshot, source: Snapshot) -> None:
    """Copy tensors into others of the same names."""
    for there, here in zip(target, source, strict=True):
        if here:
            torch._foreach_copy_([there[name] for name in here], list(here.values()))


@torch.no_grad()
def copied(tensors: Tensors) -> Tensors:
    """Copies of some tensors, on a GPU by few launches."""
    dense = {name: value for name, value in tensors.items() if value.layout is torch.strided}
    copies = {name: torch.empty_like(value) for name, value in dense.items()}
    copy_into((copies, {}), (dense, {}))
    return {name: copies[name] if name in copies else tensors[name].clone() for name in tensors}


def _kinds(tensors: Tensors) -> list[tuple[object, ...]]:
    return [
        (name, value.dtype, value.device, value.shape, value.stride())
        for name, value in tensors.items()
    ]


def only(tensors: Tensors, names: Iterable[str]) -> Tensors:
    """Those tensors that have one of some names."""
    return {name: tensors[name] for name in names if name in tensors}


@torch.no_grad()
def differ(here: Snapshot, there: Snapshot) -> bool:
    """Whether some tensor of numbers, all of them finite, is another one there; fast if so."""
    return any(
        (one.is_floating_point() or one.is_complex())
        and not torch.equal(one, other)
        and _finite(one, other)
        for one, other in _pairs(here, there)
    )


def _pairs(here: Snapshot, there: Snapshot) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for one, other in zip(here, there, strict=True):
        for name, value in one.items():
            # An optimizer may keep something only once a sample asks for it.
            yield value, other[name] if name in other else torch.zeros_like(value)


@torch.no_grad()
def contrast(here: Snapshot, there: Snapshot, before: Snapshot) -> float:
    """How far two states are apart, as a share of how far the first went since `before`.

    In the part that differs most: the model, or what the optimizer keeps under one key. 0 if all
    bits are the same. What is no number shows nothing.
    """
    found = [share(here[0], there[0], before[0])]
    for key in {name.partition("/")[0] for name in here[1]}:
        own = [name for name in here[1] if name.partition("/")[0] == key]
        found.append(share(only(here[1], own), only(there[1], own), before[1]))
    return max(found)


def share(here: Tensors, there: Tensors, before: Tensors) -> float:
    """How far two sets of tensors are apart, as a share of how far the first went."""
    gaps = norms_of(there, here)
    # Where a gap is a number there are numbers on both sides; the others are looked at.
    finite = [
        name
        for name, gap in gaps.items()
        if math.isfinite(gap) or _finite(*(side[name] for side in (here, there) if name in side))
    ]
    gap = math.hypot(*(gaps[name] for name in finite))
    if not gap:
        # The same, or zeros of other signs.
        return 0.0
    went = math.hypot(*norms_of(only(before, finite), only(here, finite)).values())
    return gap / went if went else math.inf


def _finite(*tensors: torch.Tensor) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
