"""How far a state moved between two snapshots: what `state.moves` finds, in few calls."""

import math
from collections import defaultdict

import torch

from polo.evidence.replay.snapshot import Copy, Slot
from polo.evidence.replay.state import STEP, in_units, relative, rest_move

_MODEL, _CHANGE, _SIZE = "model", "change", "size"


class Measuring:
    """Norms in the making: kernels are launched here, and the numbers fetched later, all at once.

    Args:
        before: A snapshot; None if there is none, and only the rest's size is measured.
        after: A later one.
    """

    def __init__(self, before: Slot | None, after: Slot) -> None:
        self._before, self._after = before, after
        self._norms: dict[torch.device, list[tuple[tuple[str, str], torch.Tensor]]] = {}
        if before and before.model and after.model:
            self._add(_MODEL, after.model, before.model)
        if after.rest:
            self._add(_SIZE, after.rest)
            if old := self._same_rest():
                self._add(_CHANGE, after.rest, old)

    def moves(self) -> tuple[int, int] | None:
        """The moves of model and rest; None if there was nothing before."""
        totals = self._fetched()
        before, rest = self._before, self._after.rest
        if rest:
            # Types without fractions have no norm, which is why a key may have none.
            keys = {section.key for section in rest.plan.sections} - {STEP}
            rest.norms = {key: totals.get((_SIZE, key), 0.0) for key in keys}
        if before is None:
            return None
        model = in_units(totals.get((_MODEL, ""), 0.0))
        if rest and (old := self._same_rest()):
            found = (
                relative(totals.get((_CHANGE, key), 0.0), old.norms[key], norm)
                for key, norm in rest.norms.items()
            )
            return model, max(found, default=0)
        # The optimizer has gained tensors, which it does once.
        sides = (copy.named() if copy else {} for copy in (before.rest, rest))
        return model, rest_move(*sides)

    def _same_rest(self) -> Copy | None:
        """The rest before, if it has the same tensors."""
        old, new = self._before and self._before.rest, self._after.rest
        return old if old and new and old.plan is new.plan else None

    def _add(self, kind: str, after: Copy, before: Copy | None = None) -> None:
        for at, (key, strips) in enumerate(after.strips):
            change: list[torch.Tensor] | tuple[torch.Tensor, ...] = _wide(strips)
            if before:
                change = torch._foreach_sub(change, _wide(before.strips[at][1]))
            norms = torch._foreach_norm(change, 2, torch.float64)
            labelled = self._norms.setdefault(strips[0].device, [])
            labelled += [((kind, key), norm) for norm in norms]

    def _fetched(self) -> dict[tuple[str, str], float]:
        parts: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for labelled in self._norms.values():
            values = torch.stack([norm for _, norm in labelled]).tolist()
            for (label, _), value in zip(labelled, values, strict=True):
                parts[label].append(value)
        return {label: math.hypot(*values) for label, values in parts.items()}


def _wide(strips: list[torch.Tensor]) -> list[torch.Tensor]:
    if strips[0].dtype in (torch.float32, torch.float64):
        return strips
    return [strip.to(torch.float32) for strip in strips]
