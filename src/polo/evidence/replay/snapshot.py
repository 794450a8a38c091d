"""Copies of a training state that cost training little: a few flat pieces of memory, used again.

What is measured alike lies side by side, the model's tensors and the optimizer's in the same
memory. Copying them takes one call for each type, measuring how far they moved takes a few, and
all that is hashed is handed over at once, without touching a tensor.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from polo.embedding.graphs import Graphs
from polo.evidence.replay.memory import Memory
from polo.evidence.replay.state import STEP, Tensors, pieces_of
from polo.protocol.layout import Layout
from polo.weights.pieces import answer_size, table_of

_ALIGNED = 64
_CPU = torch.device("cpu")

MODEL = "model"
REST = "rest"

Label = tuple[str, str]
"""What a tensor is: `TRAINED`, `STILL`, or `REST` and the key that the optimizer has it under."""

TRAINED: Label = MODEL, ""
STILL: Label = MODEL, "still"
"""What is copied of a model and not measured."""

Kind = tuple[torch.dtype, torch.Size, torch.device]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Spot:
    """Where a tensor lies in a copy.

    Attributes:
        label: What it is.
        name: Its name in its layout.
        dtype: Its type.
        shape: Its shape.
        device: Where it is copied to.
        start: First byte within the memory on that device.
        stop: End of it, with what is left free to the next tensor.
    """

    label: Label
    name: str
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    start: int
    stop: int


class Plan:
    """Where each tensor of a state lies in a copy.

    Args:
        model: The model's layout.
        rest: The layout of the optimizer's state; None if it keeps none.
        tensors: Live tensors in the order of both, the model's first; what is neither on the CPU
            nor on a CUDA device is copied to the CPU.
        trained: Names of the model's tensors whose moves are measured; running statistics are not
            among them, since a few large ones would drown all weights.

    Attributes:
        model: The model's layout.
        rest: The rest's.
        trained: The names whose moves are measured.
        spots: Where tensors lie, in order.
        groups: Which of them one call copies.
        sections: Which of them lie side by side, and are measured together.
        sizes: Bytes of a copy, by device.
        bases: Where the memory of each device begins when all of it is brought together.
        size: Bytes of all of it together.
        table: What is hashed of that, in order: the model's, and then the rest's.
        own: How many bytes the model's hashes have.
        keys: Under which keys the optimizer keeps what is measured.
    """

    def __init__(
        self,
        model: Layout,
        rest: Layout | None,
        tensors: Sequence[torch.Tensor],
        trained: Sequence[str],
    ) -> None:
        self.model, self.rest, self.trained = model, rest, trained
        self._kinds = kinds_of(tensors)
        self.sizes: dict[torch.device, int] = {}
        labelled = list(self._labelled())
        sections: dict[tuple[torch.device, Label, torch.dtype], list[int]] = {}
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for at, ((label, _), value) in enumerate(zip(labelled, tensors, strict=True)):
            home = _home(value)
            sections.setdefault((home, label, value.dtype), []).append(at)
            groups.setdefault((home, value.dtype), []).append(at)
        self.groups, self.sections = list(groups.values()), list(sections.values())
        spots = {
            at: self._spot(*labelled[at], tensors[at])
            for at in itertools.chain.from_iterable(self.sections)
        }
        self.spots = [spots[at] for at in range(len(tensors))]
        self.bases: dict[torch.device, int] = {}
        self.size = 0
        for device, size in self.sizes.items():
            self.bases[device] = self.size
            self.size += size
        parts = (model, self.spots[: len(model.tensors)]), (rest, self.spots[len(model.tensors) :])
        own, others = (self._table(layout, own) if layout else b"" for layout, own in parts)
        self.table, self.own = own + others, answer_size(own)
        labels = {spot.label for spot in self.spots}
        # Types without fractions have no norm, which is why a key may have none.
        self.keys = {key for part, key in labels if part == REST and key != STEP}

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors can be copied by this plan."""
        return self._kinds == kinds_of(tensors)

    def _labelled(self) -> Iterator[tuple[Label, str]]:
        trained = set(self.trained)
        for tensor in self.model.tensors:
            yield TRAINED if tensor.name in trained else STILL, tensor.name
        for tensor in self.rest.tensors if self.rest else ():
            yield (REST, tensor.name.partition("/")[0]), tensor.name

    def _spot(self, label: Label, name: str, value: torch.Tensor) -> Spot:
        """The next free place on a tensor's device."""
        home = _home(value)
        start = self.sizes.get(home, 0)
        size = value.numel() * value.element_size()
        self.sizes[home] = stop = start + -(-size // _ALIGNED) * _ALIGNED
        return Spot(label, name, value.dtype, value.shape, home, start, stop)

    def _table(self, layout: Layout, spots: Sequence[Spot]) -> bytes:
        firsts = [self.bases[spot.device] + spot.start for spot in spots]
        return table_of(
            (firsts[at] + start, firsts[at] + stop, b"") for at, start, stop in pieces_of(layout)
        )


@dataclass(frozen=True)
class Live:
    """Tensors as they are now.

    Attributes:
        plan: How they are copied.
        groups: The tensors, in the plan's groups.
        number: Two of equal numbers have tensors of equal types, counts and strides at equal
            addresses.
    """

    plan: Plan
    groups: Sequence[list[torch.Tensor]]
    number: int


class Copy:
    """One copy by a plan.

    Attributes:
        plan: The plan.
        number: Its own, which no other copy ever has.
        host: Its memory, if all of it is on the CPU.
        memory: Its memory, by device.
        strips: What is measured on each device, in lists that are measured one after the other, so
            that little memory is taken at once: labels, and a strip of memory for each.
        rooms: Where each device writes what it measures: on the host, and pinned.
        norms: The norm of what the optimizer keeps under each key, once it was measured.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.number = plan, next(_numbers)
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
        self._views = [[self._view(plan.spots[at]) for at in members] for members in plan.groups]
        self.strips: dict[torch.device, list[tuple[list[Label], list[torch.Tensor]]]] = {
            device: list(_at_once(self._measured(device))) for device in self.memory
        }
        self.rooms = {device: _room(device, strips) for device, strips in self.strips.items()}
        self.norms: dict[str, float] = {}

    @torch.no_grad()
    def take(self, live: Live, device: torch.device) -> None:
        """Copy live tensors to one device, on its current stream."""
        groups = zip(self.plan.groups, self._views, live.groups, strict=True)
        for members, views, tensors in groups:
            if self.plan.spots[members[0]].device == device:
                torch._foreach_copy_(views, tensors)

    def trained(self) -> Tensors:
        """The copied tensors of the model that are measured, by name."""
        found = (spot for spot in self.plan.spots if spot.label == TRAINED)
        return {spot.name: self._view(spot) for spot in found}

    def rest(self) -> Tensors:
        """The copied tensors of the optimizer, by name."""
        found = (spot for spot in self.plan.spots if spot.label[0] == REST)
        return {spot.name: self._view(spot) for spot in found}

    def _view(self, spot: Spot) -> torch.Tensor:
        size = spot.shape.numel() * spot.dtype.itemsize
        memory = self.memory[spot.device][spot.start : spot.start + size]
        return memory.view(spot.dtype).view(spot.shape)

    def _measured(self, device: torch.device) -> Iterator[tuple[Label, torch.Tensor]]:
        """All memory on a device that is measured, as real numbers."""
        for members in self.plan.sections:
            first, last = self.plan.spots[members[0]], self.plan.spots[members[-1]]
            real = first.dtype.to_real()
            measured = first.device == device and first.label not in (STILL, (REST, STEP))
            if measured and real.is_floating_point and first.start < last.stop:
                yield first.label, self.memory[first.device][first.start : last.stop].view(real)


class Slot:
    """Room for one snapshot, used again and again.

    Attributes:
        copy: The copy of the state.
        filled: What happens on each CUDA device when the copy is complete.
    """

    def __init__(self) -> None:
        self.copy: Copy | None = None
        self.filled: dict[torch.device, torch.cuda.Event] = {}
        self._graphs: dict[torch.device, Graphs] = {}
        self._number = 0

    def take(self, live: Live) -> None:
        """Copy a state; memory is made the first time, and again when the plan has changed."""
        if self.copy is None or self.copy.plan is not live.plan:
            self.copy = None
            self._graphs.clear()
            self.copy = Copy(live.plan)
        if self._number != live.number:
            # There is one graph at a time: where tensors lay before is not looked at again.
            self._graphs.clear()
            self._number = live.number
        for device in self.copy.memory:
            work = partial(self.copy.take, live, device)
            if device.type != "cuda":
                work()
                continue
            graphs = self._graphs.get(device) or self._graphs.setdefault(device, Graphs(device))
            graphs.run(live.number, work)
            # Who waits for it sleeps instead of spinning.
            event = self.filled.get(device) or torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(device))
            self.filled[device] = event


def kinds_of(tensors: Sequence[torch.Tensor]) -> list[Kind]:
    """Types, shapes and devices."""
    return [(tensor.dtype, tensor.shape, tensor.device) for tensor in tensors]


def _at_once(
    measured: Iterator[tuple[Label, torch.Tensor]],
) -> Iterator[tuple[list[Label], list[torch.Tensor]]]:
    """Strips of tensors, in lists of one type."""
    labels: list[Label] = []
    strips: list[torch.Tensor] = []
    room = 0
    for label, flat in measured:
        # On the CPU so short that torch asks no further threads for help, which would get in the
        # way of training's.
        most, strip = (2**23, 2**22) if flat.is_cuda else (2**20, 2**14)
        for part in flat.split(strip):
            if strips and (strips[0].dtype != part.dtype or part.numel() > room):
                yield labels, strips
                labels, strips = [], []
            if not strips:
                room = most
            labels.append(label)
            strips.append(part)
            room -= part.numel()
    if strips:
        yield labels, strips


def _room(
    device: torch.device, strips: list[tuple[list[Label], list[torch.Tensor]]]
) -> torch.Tensor:
    """Room for two norms of every strip."""
    # To memory that is not pinned a GPU copies while the caller waits, whatever is asked of it.
    count, pinned = 2 * sum(len(labels) for labels, _ in strips), device.type == "cuda"
    return torch.zeros(count, dtype=torch.float64, device="cpu", pin_memory=pinned)


def _home(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.device.type == "cuda" else _CPU
