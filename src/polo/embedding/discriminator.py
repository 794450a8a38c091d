"""A critic that learns to tell marked blocks from unmarked ones, so that pressing can fool it.

Pressing makes weights larger and their distribution broader, and who sees only the model could
find the marked blocks by that. As in RIGA a small network learns, beside training, to tell marked
blocks from unmarked ones of the same tensors; its gradient is added to the mark's, and draws the
marked blocks back to where it cannot tell them. It sees a block as a distribution: the sorted
weights, divided by the root mean square of the tensor's unmarked blocks.

It is a critic of the Wasserstein kind: its score is f(x) = v · leaky(Ux + c), it maximises the mean
score of unmarked less that of marked blocks, and after every step the rows of U are cut to norm 1
and v to a sum of 1. Then f never rises faster than 1 per unit of x, so the gradient that it hands
back is bounded, and two layers need neither autograd nor a penalty term: few launches.

Everything is drawn from the mark's seed. On one platform a shard that is trained again from its
start comes out the same; from the middle it does not, since the critic has learnt by then.
"""

import numpy as np
import torch
from torch.nn.functional import leaky_relu

from polo.embedding import products
from polo.protocol.carrier import Carrier
from polo.watermark.mark import Mark

EVERY = 2
"""It learns with every second press; in between it only judges."""

PRICE = 32.0
"""Weight of the critic's score against the loss of one bit."""

_UNITS = 32
_SLOPE = 0.2
_RATE = 0.05
_FEWEST = 8
"""Unmarked blocks of a tensor that are looked at even if it has fewer marked ones."""


class Discriminator:
    """Tells marked blocks from unmarked ones.

    Attributes:
        reference: Unmarked blocks that it compares with; none where all are marked.
    """

    def __init__(self, mark: Mark, carrier: Carrier, device: torch.device) -> None:
        self.reference, average, shares = _comparison(mark, carrier)
        self._average = torch.from_numpy(average).to(device)
        self._shares = torch.from_numpy(shares).to(device)
        self._judged = (self._shares[len(self.reference) :] != 0).float().unsqueeze(1)
        kind = torch.float32
        self._scale = torch.ones(len(mark.blocks), 1, dtype=kind, device=device)
        random = torch.Generator().manual_seed(int.from_bytes(mark.seed[:8], "little"))
        first = torch.randn(_UNITS, mark.scheme.block, generator=random, dtype=kind)
        self._first = (first / first.norm(dim=1, keepdim=True)).to(device)
        self._offsets = torch.zeros(_UNITS, dtype=kind, device=device)
        # Silent until it has learnt something.
        self._second = torch.zeros(_UNITS, dtype=kind, device=device)
        # Without momentum: the blocks answer to each of its steps, and both would swing.
        layers = [self._first, self._offsets, self._second]
        self._optimizer = torch.optim.Adam(
            layers, lr=_RATE, betas=(0.0, 0.9), capturable=device.type == "cuda"
        )

    def learn(self, values: torch.Tensor, unmarked: torch.Tensor) -> None:
        """Take a step.

        Args:
            values: The marked weights, as blocks × weights.
            unmarked: The unmarked ones that it asked for, as blocks × weights.
        """
        unmarked = unmarked.to(values)
        squares = unmarked.square().mean(dim=1)
        size = products.each(self._average, squares.unsqueeze(0))[0].sqrt().clamp(min=1e-12)
        # In place, as everything that outlives a step: graphs of steps know memory by its address.
        self._scale.copy_(size[len(unmarked) :].unsqueeze(1))
        inputs = _as_distribution(torch.cat([unmarked, values]), size.unsqueeze(1))[0]
        before = products.each(self._first, inputs) + self._offsets
        slopes = self._shares.unsqueeze(1) * self._slopes(before)
        # Optimizers go down, and the critic wants to go up.
        self._first.grad = -products.across(slopes, inputs)
        self._offsets.grad = -slopes.sum(dim=0)
        self._second.grad = -(leaky_relu(before, _SLOPE) * self._shares.unsqueeze(1)).sum(dim=0)
        self._optimizer.step()
        self._first.div_(self._first.norm(dim=1, keepdim=True).clamp(min=1))
        self._second.div_(self._second.abs().sum().clamp(min=1))

    def loss(self, values: torch.Tensor) -> torch.Tensor:
        """What marked blocks pay for looking marked; differentiable."""
        inputs = _as_distribution(values, self._scale.to(values.dtype))[0]
        layers = (self._offsets, self._first, self._second)
        offsets, first, second = (layer.to(values.dtype) for layer in layers)
        scores = leaky_relu(torch.addmm(offsets, inputs, first.T), _SLOPE) @ second
        return -PRICE * (scores * self._judged.squeeze(1)).sum()

    def gradient(self, values: torch.Tensor) -> torch.Tensor:
        """∇ of that loss at these weights."""
        inputs, order = _as_distribution(values, self._scale)
        before = products.each(self._first, inputs) + self._offsets
        sorted_gradient = products.each(self._first.T, self._slopes(before))
        # What belongs to a rank goes back to the weight that has it.
        gradient = torch.empty_like(values).scatter_(1, order, sorted_gradient)
        return gradient.mul_(self._judged * (-PRICE * values.shape[1] ** -0.5) / self._scale)

    def _slopes(self, before: torch.Tensor) -> torch.Tensor:
        """Slopes of the scores by hidden units, given what these get."""
        second = self._second.expand_as(before)
        slopes: torch.Tensor = torch.ops.aten.leaky_relu_backward(second, before, _SLOPE, False)
        return slopes


def _as_distribution(
    values: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted weights over their tensor's size, of norm about 1; and which weight each one is."""
    ordered, order = values.sort(dim=1)
    return ordered / (scale * values.shape[1] ** 0.5), order


def _comparison(mark: Mark, carrier: Carrier) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """What is compared with what.

    Returns:
        Unmarked blocks, drawn from the tensors of the marked ones; a matrix that turns their mean
        squares into that of the tensor of each block, unmarked ones first; and the share of each
        block in the critic's goal: above zero for unmarked and below for marked blocks, and zero
        for those of a tensor without unmarked ones.
    """
    random = np.random.default_rng(int.from_bytes(mark.seed, "little"))
    tensors = np.array([carrier.locate(block).tensor for block in mark.blocks])
    reference: list[int] = []
    start = 0
    for tensor in carrier.tensors:
        count = carrier.layout.tensors[tensor].elements // carrier.block
        marked = int((tensors == tensor).sum())
        if marked:
            drawn = _draw(random, count, marked, {b - start for b in mark.blocks})
            reference += [start + block for block in drawn]
        start += count
    theirs = np.array([carrier.locate(block).tensor for block in reference], dtype=tensors.dtype)
    alike = (np.concatenate([theirs, tensors])[:, None] == theirs[None, :]).astype(np.float32)
    found = alike.sum(axis=1, keepdims=True)
    average = np.where(found > 0, alike / np.maximum(found, 1), 1 / max(1, len(reference)))
    judged = (found[len(reference) :, 0] > 0).astype(np.float32)
    judged /= max(1.0, float(judged.sum()))
    weight = np.array([judged[tensors == tensor].sum() for tensor in theirs], dtype=np.float32)
    shares = np.concatenate([weight / found[: len(reference), 0], -judged])
    return tuple(reference), average.astype(np.float32), shares.astype(np.float32)


def _draw(random: np.random.Generator, count: int, marked: int, taken: set[int]) -> list[int]:
    """As many unmarked blocks of a tensor as it has marked ones, or the few that there are."""
    wanted = max(marked, _FEWEST)
    drawn = random.choice(count, size=min(count, wanted + marked), replace=False)
    return [int(block) for block in drawn if int(block) not in taken][:wanted]
