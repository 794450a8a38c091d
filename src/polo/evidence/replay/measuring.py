"""How far a state moved between two snapshots: what `state.moves` finds, in few calls."""

import math
from collections import defaultdict

import torch

from polo.evidence.replay.snapshot import MODEL, REST, Copy, Label
from polo.evidence.replay.state import STEP, in_units, norm_of, relative, rest_move


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
        norms: dict[torch.device, list[torch.Tensor]] = {}
        self._labels: dict[torch.device, list[tuple[bool, Label]]] = {}
        for at, (labels, strips) in enumerate(after.strips):
            kept = [strip for label, strip in zip(labels, strips, strict=True) if label[0] == REST]
            wide = _wide(kept)
            said = [(False, label) for label in labels if label[0] == REST]
            if before and self._same:
                changes = torch._foreach_sub(_wide(strips), _wide(before.strips[at][1]))
                wide = [*changes, *wide]
                said = [*((True, label) for label in labels), *said]
            if wide:
                device = strips[0].device
                norms.setdefault(device, []).extend(torch._foreach_norm(wide, 2, torch.float64))
                self._labels.setdefault(device, []).extend(said)
        # They are on their way now, and there when the streams of all devices have come so far.
        self._values = [torch.stack(some).to("cpu", non_blocking=True) for some in norms.values()]

    def moves(self) -> tuple[int, int] | None:
        """The moves of model and rest, once all is done; None if there was nothing before."""
        changes, sizes = self._read()
        before, after = self._before, self._after
        # Types without fractions have no norm, which is why a key may have none.
        keys = {key for part, key in (spot.label for spot in after.plan.spots) if part == REST}
        after.norms = {key: sizes.get((REST, key), 0.0) for key in keys - {STEP}}
        if before is None:
            return None
        if not self._same:
            return _between(before, after)
        rest = (
            relative(changes.get((REST, key), 0.0), before.norms[key], norm)
            for key, norm in after.norms.items()
        )
        return in_units(changes.get((MODEL, ""), 0.0)), max(rest, default=0)

    def _read(self) -> tuple[dict[Label, float], dict[Label, float]]:
        """Norms of changes and of what there is, by label."""
        parts: defaultdict[tuple[bool, Label], list[float]] = defaultdict(list)
        for said, values in zip(self._labels.values(), self._values, strict=True):
            for what, value in zip(said, values.tolist(), strict=True):
                parts[what].append(value)
        whole = {what: math.hypot(*values) for what, values in parts.items()}
        changes, sizes = (
            {label: norm for (change, label), norm in whole.items() if change is wanted}
            for wanted in (True, False)
        )
        return changes, sizes


def _between(before: Copy, after: Copy) -> tuple[int, int]:
    """The moves between two copies by different plans, tensor by tensor."""
    sides = [
        {name: value for name, value in copy.named(MODEL).items() if name in after.plan.trained}
        for copy in (before, after)
    ]
    norm = norm_of(*sides)
    rest = rest_move(before.named(REST), after.named(REST))
    return in_units(0.0 if norm is None else norm.item()), rest


def _wide(strips: list[torch.Tensor]) -> list[torch.Tensor]:
    if not strips or strips[0].dtype in (torch.float32, torch.float64):
        return strips
    return [strip.to(torch.float32) for strip in strips]
