"""Copies of a training state that cost training little: a few flat pieces of memory, used again.

Tensors of one key, type and device lie side by side. Copying them takes one call each, measuring
how far they moved takes a few, and what is hashed can be handed over without touching a tensor.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from polo.evidence.replay.state import Tensors, pieces_of
from polo.protocol.layout import Layout

_ALIGNED = 64

STILL = "still"
"""The key of sections of a model that are copied and not measured."""


@dataclass(frozen=True)
class Section:
    """Tensors that lie side by side.

    Attributes:
        key: What the optimizer keeps there; empty for a model.
        dtype: Their type.
        device: Where they are copied to.
        start: First byte within the memory on that device.
        stop: End of it.
        members: Which tensors of the layout they are.
    """

    key: str
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int
    members: tuple[int, ...]


class Plan:
    """Where each tensor of a layout lies in a copy.

    Args:
        layout: The layout.
        tensors: Live tensors in its order; what is neither on the CPU nor on a CUDA device is
            copied to the CPU.
        trained: Of a model, the names whose moves are measured; running statistics are not among
            them, since a few large ones would drown all weights.
    """

    def __init__(
        self,
        layout: Layout,
        tensors: Sequence[torch.Tensor],
        trained: Collection[str] | None = None,
    ) -> None:
        self.layout = layout
        self.trained = trained
        self._kinds = _kinds(tensors)
        self.sizes: dict[torch.device, int] = {}
        self.starts = [0] * len(tensors)
        groups: dict[tuple[torch.device, str, torch.dtype], list[int]] = {}
        for at, (tensor, value) in enumerate(zip(layout.tensors, tensors, strict=True)):
            key, _, name = tensor.name.partition("/")
            if trained is not None:
                key, name = ("" if tensor.name in trained else STILL), tensor.name
            kind = _home(value), key if name else "", value.dtype
            groups.setdefault(kind, []).append(at)
        self.sections = [self._section(*kind, members) for kind, members in groups.items()]
        self.homes = [_home(value) for value in tensors]
        self.pieces = list(pieces_of(layout))

    def _section(
        self, device: torch.device, key: str, dtype: torch.dtype, members: list[int]
    ) -> Section:
        start = end = self.sizes.get(device, 0)
        for at in members:
            self.starts[at] = end
            end += -(-self.layout.tensors[at].size // _ALIGNED) * _ALIGNED
        self.sizes[device] = end
        return Section(key, dtype, device, start, end, tuple(members))

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors can be copied by this plan."""
        return self._kinds == _kinds(tensors)

    def serves(self, other: "Plan") -> bool:
        """Whether this plan does what another one does."""
        same = self.layout == other.layout and self.trained == other.trained
        return same and self._kinds == other._kinds


class Copy:
    """One copy by a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Zeros: the gaps between tensors are measured along with them.
        self.memory = {
            device: torch.zeros(size, dtype=torch.uint8, device=device)
            for device, size in plan.sizes.items()
        }
        self._views = [
            [self._view(at, section) for at in section.members] for section in plan.sections
        ]

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy live tensors, on the current stream of their device."""
        for section, views in zip(self.plan.sections, self._views, strict=True):
            torch._foreach_copy_(views, [tensors[at] for at in section.members])

    def flats(self) -> Tensors:
        """Each section that is measured as one tensor, by its key and a number."""
        return {
            f"{section.key}/{number}": self._typed(section, section.start, section.stop)
            for number, section in enumerate(self.plan.sections)
            if section.key != STILL
        }

    def named(self) -> Tensors:
        """The copied tensors, by name."""
        return {
            self.plan.layout.tensors[at].name: view
            for section, views in zip(self.plan.sections, self._views, strict=True)
            for at, view in zip(section.members, views, strict=True)
        }

    def _view(self, at: int, section: Section) -> torch.Tensor:
        tensor, start = self.plan.layout.tensors[at], self.plan.starts[at]
        return self._typed(section, start, start + tensor.size).view(tensor.shape)

    def _typed(self, section: Section, start: int, stop: int) -> torch.Tensor:
        return self.memory[section.device][start:stop].view(section.dtype)


class Slot:
    """Room for one snapshot of model and rest, used again and again.

    Attributes:
        model: The copy of the model.
        rest: The copy of the optimizer's state; None if there was none.
        filled: On CUDA devices, what happens when the copy is complete.
    """

    def __init__(self) -> None:
        self.model: Copy | None = None
        self.rest: Copy | None = None
        self.filled: torch.cuda.Event | None = None

    @torch.no_grad()
    def take(
        self,
        model: tuple[Plan, Sequence[torch.Tensor]],
        rest: tuple[Plan, Sequence[torch.Tensor]] | None,
    ) -> None:
        """Copy a state; memory is made the first time, and again when a plan has changed."""
        self.model = _copied(self.model, *model)
        self.rest = _copied(self.rest, *rest) if rest else None
        for device in self.model.memory:
            if device.type == "cuda":
                # Who waits for it sleeps instead of spinning.
                self.filled = self.filled or torch.cuda.Event(blocking=True)
                self.filled.record(torch.cuda.current_stream(device))


def _copied(copy: Copy | None, plan: Plan, tensors: Sequence[torch.Tensor]) -> Copy:
    if copy is None or copy.plan is not plan:
        copy = Copy(plan)
    copy.take(tensors)
    return copy


def _home(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.device.type == "cuda" else torch.device("cpu")


def _kinds(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, torch.Size, torch.device]]:
    return [(tensor.dtype, tensor.shape, tensor.device) for tensor in tensors]
