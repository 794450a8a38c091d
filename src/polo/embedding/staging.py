"""Bringing the blocks of many parameters together in few launches.

On a GPU a launch costs a few microseconds, about as much as all arithmetic of a mark; a launch or
two for every tensor would be most of what a mark costs. So the blocks of all parameters of one
type on one device are copied by one list operation of torch, and added back by another. A list
operation takes dense pieces. A block of a contiguous parameter is one. In other memory formats,
such as channels last, its weights are scattered over a stretch of memory: the stretch is copied
whole, and an index picks the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

_GAP = 1024
"""Weights at most so far apart are in one stretch where stretches are not single blocks."""

_MOST_PIECES = 64
"""A contiguous parameter with more blocks than this is copied in longer stretches, too."""

_MOST_WASTE = 64
"""Stretches of more than so many times the weights in them are not worth copying."""


@dataclass(frozen=True)
class Part:
    """The blocks of a mark in one parameter.

    Attributes:
        parameter: The parameter.
        rows: Their rows in the mark.
        starts: The first weight of each in canonical order, on the parameter's device.
        block: Weights per block.
    """

    parameter: torch.nn.Parameter
    rows: tuple[int, ...]
    starts: torch.Tensor
    block: int

    def positions(self, strides: Sequence[int], starts: torch.Tensor | None = None) -> torch.Tensor:
        """Where the weights lie in the memory of a tensor of the parameter's shape."""
        starts = self.starts if starts is None else starts
        # With plain numbers only: a tensor made of a list would have to wait for the device.
        left = starts[:, None] + torch.arange(self.block, device=starts.device)
        found = torch.zeros_like(left)
        for size, stride in zip(reversed(self.parameter.shape), reversed(strides), strict=True):
            found += left % size * stride
            left = left // size
        return found

    def gather(self) -> torch.Tensor:
        """The weights, as blocks × weights, in the parameter's type."""
        held = self.parameter.detach()
        return memory_of(held).take(self.positions(held.stride()))

    def add(self, rows: torch.Tensor) -> None:
        """Add to the parameter's gradient, whatever its type and strides, if there is one."""
        target = self.parameter.grad
        if target is not None and target.layout is torch.strided:
            positions = self.positions(target.stride()).view(-1)
            memory_of(target).index_add_(0, positions, rows.reshape(-1).to(target))

    def write(self, rows: torch.Tensor) -> None:
        """Replace the weights."""
        held = self.parameter.detach()
        positions = self.positions(held.stride()).view(-1)
        memory_of(held).index_copy_(0, positions, rows.reshape(-1).to(held))


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in the order in which they lie in memory."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.as_strided((1 + sum((size - 1) * stride for size, stride in steps),), (1,))


@dataclass(frozen=True)
class Cut:
    """Which stretches of a parameter's memory are copied.

    Attributes:
        part: The parameter's part of the mark.
        positions: Where the mark's weights lie, as blocks × weights; on the CPU.
        starts: First position of each stretch, ascending.
        stops: Where each ends.
    """

    part: Part
    positions: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor

    @cached_property
    def holding(self) -> torch.Tensor:
        """The stretch that holds each of the mark's weights."""
        return torch.searchsorted(self.starts, self.positions, right=True) - 1

    def first_rows(self) -> list[int]:
        """The first row of the mark in each stretch."""
        rows = torch.tensor(self.part.rows)[:, None].expand_as(self.holding).reshape(-1)
        most = torch.full_like(self.starts, max(self.part.rows))
        found: list[int] = most.scatter_reduce(0, self.holding.view(-1), rows, "amin").tolist()
        return found

    def sizes(self) -> list[int]:
        """Lengths of the stretches."""
        found: list[int] = (self.stops - self.starts).tolist()
        return found

    def cuts(self) -> list[int]:
        """Lengths of what is left out and of what is copied, in turn."""
        ends = torch.stack([self.starts, self.stops], dim=1).view(-1)
        found: list[int] = ends.diff(prepend=ends.new_zeros(1)).tolist()
        return found


def cut(part: Part) -> Cut | None:
    """How to copy a part; None where its weights lie so far apart that it is picked alone."""
    held = part.parameter.detach()
    positions = part.positions(held.stride(), part.starts.cpu())
    if held.is_contiguous() and len(part.rows) <= _MOST_PIECES:
        starts = part.starts.cpu().sort().values
        return Cut(part, positions, starts, starts + part.block)
    flat = positions.view(-1).sort().values
    apart = (flat.diff() > _GAP).nonzero().view(-1)
    starts = flat[torch.cat([apart.new_zeros(1), apart + 1])]
    stops = flat[torch.cat([apart, apart.new_tensor([len(flat) - 1])])] + 1
    wasteful = int((stops - starts).sum()) > _MOST_WASTE * len(flat)
    return (
        None
        if wasteful or len(starts) > 2 * len(part.rows)
        else Cut(part, positions, starts, stops)
    )


class _Source:
    """One parameter of a stage.

    Attributes:
        part: Its part of the mark.
        places: The stretches of the stage that are its own.
        rows: The rows of the stage that are its own.
        pieces: Its stretches, as they lie in the parameter.
    """

    def __init__(self, found: Cut, places: list[int], rows: torch.Tensor) -> None:
        self.part = found.part
        self.places = places
        self.rows = rows
        self._lengths = found.cuts()
        self._size = sum(self._lengths)
        self._strides = self.part.parameter.stride()
        self.pieces = self.pieces_of(self.part.parameter.detach())

    def pieces_of(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """The stretches in a tensor that lies in memory as the parameter does."""
        return tensor.as_strided((self._size,), (1,)).split_with_sizes(self._lengths)[1::2]

    def fits(self, gradient: torch.Tensor) -> bool:
        """Whether a gradient lies in memory as its parameter does."""
        parameter = self.part.parameter
        if gradient.dtype != parameter.dtype or gradient.layout is not torch.strided:
            return False
        strides = gradient.stride()
        # Along a dimension of one element any stride will do.
        return strides == self._strides or all(
            size == 1 or mine == its
            for size, mine, its in zip(parameter.shape, self._strides, strides, strict=True)
        )


class Stage:
    """Parts that are copied together: those of parameters of one type on one device.

    Attributes:
        rows: Their rows in the mark, in the order in which `gather` gives them.
    """

    def __init__(self, cuts: Sequence[Cut]) -> None:
        parameter = cuts[0].part.parameter
        self.rows = tuple(sorted(row for one in cuts for row in one.part.rows))
        self._block = cuts[0].part.block
        self._like = parameter.detach()[:0].view(-1)
        self._lengths, self._sources, index = self._laid(cuts)
        size, count = sum(self._lengths), len(index)
        self._index = self._inverse = self._nothing = None
        # Blocks of contiguous parameters come out in the mark's order, and need no index.
        if not torch.equal(index, torch.arange(size)):
            inverse = torch.full((size,), count)
            inverse[index] = torch.arange(count)
            self._index, self._inverse = (at.to(parameter.device) for at in (index, inverse))
        if size > count:
            # Adding -0.0 changes nothing, not even the sign of a zero.
            self._nothing = self._like.new_full((1,), -0.0)

    def _laid(self, cuts: Sequence[Cut]) -> tuple[list[int], list[_Source], torch.Tensor]:
        """All stretches in the order of their rows: lengths, owners, and where the weights are."""
        stretches = sorted(
            (row, number, at, size)
            for number, one in enumerate(cuts)
            for at, (row, size) in enumerate(zip(one.first_rows(), one.sizes(), strict=True))
        )
        lengths = [size for *_, size in stretches]
        places: list[list[int]] = [[0] * len(one.starts) for one in cuts]
        for place, (_, number, at, _) in enumerate(stretches):
            places[number][at] = place
        ends = torch.tensor(lengths).cumsum(0)
        local = {row: at for at, row in enumerate(self.rows)}
        index = torch.empty(len(self.rows), self._block, dtype=torch.long)
        sources = []
        for one, mine in zip(cuts, places, strict=True):
            rows = torch.tensor([local[row] for row in one.part.rows])
            shifts = ends[mine] - one.stops
            index[rows] = one.positions + shifts[one.holding]
            sources.append(_Source(one, mine, rows.to(one.part.parameter.device)))
        return lengths, sources, index.view(-1)

    def gather(self) -> torch.Tensor:
        """The weights, as blocks × weights, in the parameters' type."""
        stage = self._like.new_empty(sum(self._lengths))
        pieces = stage.split_with_sizes(self._lengths)
        copied = [pieces[place] for source in self._sources for place in source.places]
        torch._foreach_copy_(copied, [piece for one in self._sources for piece in one.pieces])
        found = stage if self._index is None else stage.index_select(0, self._index)
        return found.view(-1, self._block)

    def add(self, rows: torch.Tensor) -> None:
        """Add to the gradients of those parameters that have one."""
        pieces = self._spread(rows.to(self._like))
        targets: list[torch.Tensor] = []
        added: list[torch.Tensor] = []
        for source in self._sources:
            gradient = source.part.parameter.grad
            if gradient is None:
                continue
            if source.fits(gradient):
                targets += source.pieces_of(gradient)
                added += [pieces[place] for place in source.places]
            else:
                source.part.add(rows.to(gradient.device).index_select(0, source.rows))
        if targets:
            torch._foreach_add_(targets, added)

    def _spread(self, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Rows as stretches; between the mark's weights there is nothing to add."""
        flat = rows.reshape(-1)
        if self._nothing is not None:
            flat = torch.cat([flat, self._nothing])
        if self._inverse is not None:
            flat = flat.index_select(0, self._inverse)
        return flat.split_with_sizes(self._lengths)
