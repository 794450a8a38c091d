"""How far a state moved between two snapshots: what `state.moves` finds, in few calls."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from polo.evidence.replay.snapshot import REST, TRAINED, Copy, Label
from polo.evidence.replay.state import STEP, in_units, norm_of, relative, rest_move

_CHANGE, _SIZE = "change", "size"


class Measuring:
    """Norms in the making: kernels are launched here, and the numbers read when they are done.

    Args:
        before: A snapshot; None if there is none, and only the rest's size is measured.
        after: A later one.
    """

    def __init__(self, before: Copy | None, after: Copy) -> None:
        self._before, self._after = before, after
        # The optimizer may have gained tensors, which it does once.
        self._same = before is not None and before.plan is after.plan
        self._said: dict[torch.device, list[tuple[str, Label]]] = {}
        self._norms: dict[torch.device, list[torch.Tensor]] = {}
        for at, (labels, strips) in enumerate(after.strips):
            now = _wide(strips)
            kept = [which for which, label in enumerate(labels) if label[0] == REST]
            self._add(_SIZE, [labels[which] for which in kept], [now[which] for which in kept])
            if before and self._same:
                old = _wide(before.strips[at][1])
                self._add(_CHANGE, labels, torch._foreach_sub(now, old))
        # They are on their way now, and there when the streams of all devices have come so far.
        self._values = [_on_the_way(torch.stack(norms)) for norms in self._norms.values()]

    @property
    def is_done(self) -> bool:
        """Whether all that `moves` needs was asked for."""
        return self._same or self._before is None

    def moves(self) -> tuple[int, int] | None:
        """The moves of model and rest, once all is done; None if there was nothing before."""
        norms = self._read()
        before, after = self._before, self._after
        # Types without fractions have no norm, which is why a key may have none.
        keys = {key for part, key in (spot.label for spot in after.plan.spots) if part == REST}
        after.norms = {key: norms[_SIZE, (REST, key)] for key in keys - {STEP}}
        if before is None:
            return None
        if not self._same:
            return _between(before, after)
        rest = (
            relative(norms[_CHANGE, (REST, key)], before.norms[key], norm)
            for key, norm in after.norms.items()
        )
        return in_units(norms[_CHANGE, TRAINED]), max(rest, default=0)

    def _add(self, kind: str, labels: Sequence[Label], values: Sequence[torch.Tensor]) -> None:
        if values:
            device, norms = values[0].device, torch._foreach_norm([*values], 2, torch.float64)
            self._norms.setdefault(device, []).extend(norms)
            self._said.setdefault(device, []).extend((kind, label) for label in labels)

    def _read(self) -> defaultdict[tuple[str, Label], float]:
        """All norms; zero for what was not measured."""
        found: defaultdict[tuple[str, Label], float] = defaultdict(float)
        for said, values in zip(self._said.values(), self._values, strict=True):
            for what, value in zip(said, values.tolist(), strict=True):
                found[what] = math.hypot(found[what], value)
        return found


def _between(before: Copy, after: Copy) -> tuple[int, int]:
    """The moves between two copies by different plans, tensor by tensor."""
    norm = norm_of(before.trained(), after.trained())
    return in_units(0.0 if norm is None else norm.item()), rest_move(before.rest(), after.rest())


def _on_the_way(values: torch.Tensor) -> torch.Tensor:
    """Numbers that will be on the host when the current stream has come so far."""
    if not values.is_cuda:
        return values
    # To memory that is not pinned a GPU copies while the caller waits, whatever is asked of it.
    room = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
    return room.copy_(values, non_blocking=True)


def _wide(strips: list[torch.Tensor]) -> list[torch.Tensor]:
    if strips[0].dtype in (torch.float32, torch.float64):
        return strips
    return [strip.to(torch.float32) for strip in strips]
