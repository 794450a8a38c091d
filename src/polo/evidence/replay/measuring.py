"""How far a state moved between two snapshots: what `state.moves` finds, in few calls."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from polo.evidence.replay.snapshot import REST, TRAINED, Copy, Label
from polo.evidence.replay.state import in_units, norm_of, relative, rest_move

_CHANGE, _SIZE = "change", "size"


class Measuring:
    """Norms in the making: devices are asked for them, and they are read when those are done.

    Args:
        before: A snapshot; None if there is none, and only the rest's size is measured.
        after: A later one.
        keep: Whether the snapshot before is still needed; else its memory takes the differences.
    """

    def __init__(self, before: Copy | None, after: Copy, *, keep: bool) -> None:
        self._before, self._after, self._keep = before, after, keep
        # The optimizer may have gained tensors, which it does once.
        self._same = before is not None and before.plan is after.plan

    @torch.no_grad()
    def ask(self, device: torch.device) -> None:
        """Have one device measure its part, on its current stream."""
        norms: list[torch.Tensor] = []
        for at, (labels, strips) in enumerate(self._after.strips[device]):
            now = _wide(strips)
            values = [now[which] for which in _kept(labels)]
            if self._before and self._same:
                values += self._differences(self._before.strips[device][at][1], now)
            if values:
                norms += torch._foreach_norm(values, 2, torch.float64)
            # What was widened goes before more is.
            del now, values
        if norms:
            room = self._after.rooms[device][: len(norms)]
            room.copy_(torch.stack(norms), non_blocking=True)

    @property
    def is_done(self) -> bool:
        """Whether all that `moves` needs was asked for."""
        return self._same or self._before is None

    def moves(self) -> tuple[int, int] | None:
        """The moves of model and rest, once all is done; None if there was nothing before."""
        norms = self._read()
        before, after = self._before, self._after
        after.norms = {key: norms[_SIZE, (REST, key)] for key in after.plan.keys}
        if before is None:
            return None
        if not self._same:
            return _between(before, after)
        rest = (
            relative(norms[_CHANGE, (REST, key)], before.norms[key], norm)
            for key, norm in after.norms.items()
        )
        return in_units(norms[_CHANGE, TRAINED]), max(rest, default=0)

    def _differences(
        self, old: list[torch.Tensor], now: list[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        wide = _wide(old)
        if self._keep and wide is old:
            return torch._foreach_sub(wide, now)
        torch._foreach_sub_(wide, now)
        return wide

    def _read(self) -> defaultdict[tuple[str, Label], float]:
        """All norms, in the order in which they were asked for; zero for what was not measured."""
        found: defaultdict[tuple[str, Label], float] = defaultdict(float)
        for device, lists in self._after.strips.items():
            said: list[tuple[str, Label]] = []
            for labels, _ in lists:
                said += [(_SIZE, labels[which]) for which in _kept(labels)]
                if self._same:
                    said += [(_CHANGE, label) for label in labels]
            values = self._after.rooms[device][: len(said)].tolist()
            for what, value in zip(said, values, strict=True):
                found[what] = math.hypot(found[what], value)
        return found


def _kept(labels: list[Label]) -> list[int]:
    """Which of these the optimizer keeps."""
    return [which for which, label in enumerate(labels) if label[0] == REST]


@torch.no_grad()
def _between(before: Copy, after: Copy) -> tuple[int, int]:
    """The moves between two copies by different plans, tensor by tensor."""
    norm = norm_of(before.trained(), after.trained())
    return in_units(0.0 if norm is None else norm.item()), rest_move(before.rest(), after.rest())


def _wide(strips: list[torch.Tensor]) -> list[torch.Tensor]:
    if strips[0].dtype in (torch.float32, torch.float64):
        return strips
    return [strip.to(torch.float32) for strip in strips]
