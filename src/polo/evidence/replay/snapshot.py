"""Copies of a training state that cost training little: a few flat pieces of memory, used again.

Tensors of one key, type and device lie side by side. Copying them takes one call each, measuring
how far they moved takes a few, and what is hashed can be handed over without touching a tensor.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from polo.evidence.replay.hashing import table_of
from polo.evidence.replay.memory import Memory
from polo.evidence.replay.state import STEP, Tensors, pieces_of
from polo.protocol.layout import Layout

_ALIGNED = 64
_CPU = torch.device("cpu")

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

    Attributes:
        layout: The layout.
        trained: The names whose moves are measured.
        sections: Tensors that lie side by side.
        sizes: Bytes of a copy, by device.
        starts: First byte of each tensor, within the memory on its device.
        bases: Where the memory of each device begins when all of it is brought together.
        size: Bytes of all of it together.
        table: What is hashed of that, in order.
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
        self.bases: dict[torch.device, int] = {}
        self.size = 0
        for device, size in self.sizes.items():
            self.bases[device] = self.size
            self.size += size
        firsts = [
            self.bases[_home(value)] + start
            for value, start in zip(tensors, self.starts, strict=True)
        ]
        self.table = table_of(
            (firsts[at] + start, firsts[at] + stop) for at, start, stop in pieces_of(layout)
        )

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

    def serves(
        self, layout: Layout, tensors: Sequence[torch.Tensor], trained: Collection[str] | None
    ) -> bool:
        """Whether this plan is the one that would be made of these."""
        return self.layout == layout and self.trained == trained and self.fits(tensors)


class Copy:
    """One copy by a plan.

    Attributes:
        plan: The plan.
        host: Its memory, if all of it is on the CPU.
        memory: Its memory, by device.
        strips: What is measured: keys, and strips of a section, as many as are measured at once.
        norms: The norm of each key, once it was measured.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.host: Memory | None = None
        # Zeros: the gaps between tensors are measured along with them.
        if set(plan.sizes) <= {_CPU}:
            self.host = Memory(plan.size)
            self.memory = {_CPU: self.host.tensor}
        else:
            self.memory = {
                device: torch.zeros(size, dtype=torch.uint8, device=device)
                for device, size in plan.sizes.items()
            }
        self._views = [
            [self._view(at, section) for at in section.members] for section in plan.sections
        ]
        self.strips = [
            (section.key, strips)
            for section in plan.sections
            if (real := _measured_as(section)) is not None
            for strips in _strips(self._bytes(section, section.start, section.stop).view(real))
        ]
        self.norms: dict[str, float] = {}

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy live tensors, on the current stream of their device."""
        for section, views in zip(self.plan.sections, self._views, strict=True):
            torch._foreach_copy_(views, [tensors[at] for at in section.members])

    def named(self) -> Tensors:
        """The copied tensors, by name."""
        return {
            self.plan.layout.tensors[at].name: view
            for section, views in zip(self.plan.sections, self._views, strict=True)
            for at, view in zip(section.members, views, strict=True)
        }

    def _view(self, at: int, section: Section) -> torch.Tensor:
        tensor, start = self.plan.layout.tensors[at], self.plan.starts[at]
        memory = self._bytes(section, start, start + tensor.size)
        return memory.view(section.dtype).view(tensor.shape)

    def _bytes(self, section: Section, start: int, stop: int) -> torch.Tensor:
        return self.memory[section.device][start:stop]


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


def _measured_as(section: Section) -> torch.dtype | None:
    """The type of real numbers that a section is measured as; None if it is not measured."""
    real = section.dtype.to_real()
    measured = real.is_floating_point and section.key not in (STILL, STEP)
    return real if measured and section.start < section.stop else None


def _strips(flat: torch.Tensor) -> list[list[torch.Tensor]]:
    """Strips of a tensor, in lists as long as their differences may take memory at once."""
    # On the CPU so short that torch asks no further threads for help, which would get in the way
    # of training's.
    most, strip = (2**24, 2**24) if flat.is_cuda else (2**20, 2**14)
    return [list(part.split(strip)) for part in flat.split(most)]


def _home(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.device.type == "cuda" else _CPU


def _kinds(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, torch.Size, torch.device]]:
    return [(tensor.dtype, tensor.shape, tensor.device) for tensor in tensors]
