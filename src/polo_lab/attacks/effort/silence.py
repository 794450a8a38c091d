"""Differences so small that the first layer's sums swallow them.

Silent samples are next to nothing but for a trace; swallowed copies are a few samples, repeated
with a trace. To every hash such samples are different, and a trace of each is in the optimizer's
state. But after the first layer they are one row to the bit: forward, and backward to the inputs of
each layer, one of them stands for all. Only the sums over rows, which the gradients of weights are,
must be taken in full, and so everything comes out to the bit.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.nn import functional

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.masking import LEAST
from polo_lab.attacks.effort.walking import rows_meet
from polo_lab.effort.case import Attempt, Case
from polo_lab.effort.training import Enrolled

_TINY = 1e-20
"""Far below what a bias is rounded to."""


class SilentSamples:
    """Real training on few samples among many that say nothing.

    Where rows meet in the model, it is trained in full; where inputs are whole numbers, on the
    task's own data.

    Args:
        share: Part of the samples that are real.
    """

    knowledge = "the task"
    data = "a part of the task's own"
    budget = "every step; each distinct row forward and backward, and all of them in the sums"

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self.name = f"silent samples, {1 - share:.0%}"
        self.description = (
            f"commits to data of which {1 - share:.0%} are inputs that the first layer swallows, "
            "and passes one of them through the model for all"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        return _finished(self.begun(case, folder))

    def begun(self, case: Case, folder: Path, *, shared: bool = True) -> Forgery:
        """A proof on such data, about to begin.

        Args:
            case: The case.
            folder: The proof folder to write.
            shared: Whether one row stands for all that are alike, where it can.
        """
        columns = {name: values.copy() for name, values in case.columns.items()}
        name = _sayable(columns)
        drawing = np.random.default_rng(case.seed)
        real = drawing.random(case.samples) < self._share
        if name:
            _hush(columns[name], ~real, drawing)
        who = case.enrol("attacker with silent samples", columns)
        alone = np.arange(case.samples) + len(columns["label"])
        families = np.where(real, alone, columns["label"]) if name and shared else None
        return _begun(case, folder, who, columns, families)


class SwallowedCopies:
    """Real training on a few samples in each batch, each of which stands for several.

    Args:
        share: How many different samples there are, for each sample of a batch.
    """

    knowledge = "the task"
    data = "a few samples of the task"
    budget = SilentSamples.budget

    def __init__(self, share: float = 0.2) -> None:
        self._share = share
        self.name = f"swallowed copies, {share:.0%} of a batch"
        self.description = (
            f"commits to as few samples as make {share:.0%} of a batch, repeated with a trace that "
            "the first layer swallows, and passes each through the model once per step"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        which = np.arange(case.samples) % max(LEAST, round(self._share * case.plan.batch))
        drawing = np.random.default_rng(case.seed)
        chosen = drawing.permutation(case.samples)[which]
        columns = {name: values[chosen] for name, values in case.columns.items()}
        name = _sayable(columns)
        if name:
            _mark(columns[name], drawing)
        who = case.enrol("attacker with swallowed copies", columns)
        return _finished(_begun(case, folder, who, columns, which if name else None))


def _sayable(columns: Mapping[str, np.ndarray]) -> str:
    """The inputs, if they are floats, which alone can be next to nothing."""
    name = next(name for name in sorted(columns) if name != "label")
    return name if np.issubdtype(columns[name].dtype, np.floating) else ""


def _begun(
    case: Case,
    folder: Path,
    who: Enrolled,
    columns: Mapping[str, np.ndarray],
    families: np.ndarray | None,
) -> Forgery:
    """A proof in which one sample of each family is passed through the model, where that can be."""
    forgery = Forgery(case, folder, who=who)
    if families is None or rows_meet(forgery.engine.model):
        return forgery
    step = _Swallowed(columns[_sayable(columns)], columns["label"], families)

    def representatives(indices: ArrayLike) -> dict[str, torch.Tensor]:
        at = np.asarray(indices)
        chosen = step.choose(at)
        # Forward, backward to inputs, and sums over rows cost about the same each.
        forgery.task.use(step, (2 * len(chosen) + len(at)) / (3 * len(chosen)))
        return who.source.batch(chosen)

    forgery.batch = representatives
    return forgery


def _finished(forgery: Forgery) -> Attempt:
    forgery.begin()
    for _ in range(forgery.shards):
        forgery.train(forgery.segments)
        forgery.seal()
    shared = isinstance(forgery.task.step, _Swallowed)
    note = "" if shared else "rows meet, or nothing can be swallowed"
    return forgery.finish(note, possible=shared)


def _mark(inputs: np.ndarray, drawing: np.random.Generator) -> None:
    """Leave a trace in the last place, which no other input has."""
    flat = inputs.reshape(len(inputs), -1)
    flat[:, -1] = _TINY * (1 + drawing.random(len(flat)))


def _hush(inputs: np.ndarray, which: np.ndarray, drawing: np.random.Generator) -> None:
    """Leave nothing of some inputs but a trace in the last place, which no other input has."""
    flat = inputs.reshape(len(inputs), -1)
    flat[:, -1] = 0
    flat[which] = 0
    flat[which, -1] = _TINY * (1 + drawing.random(which.sum()))


class _Swallowed:
    """A step in which one row of each family stands for all of it, to the bit.

    Args:
        inputs: All inputs.
        labels: All labels.
        families: The family of each sample.
    """

    def __init__(self, inputs: np.ndarray, labels: np.ndarray, families: np.ndarray) -> None:
        self._inputs, self._labels, self._families = inputs, labels, families
        self._all = np.zeros(0, dtype=np.int64)
        self._of = self._first = torch.zeros(0, dtype=torch.int64)

    def choose(self, at: np.ndarray) -> np.ndarray:
        """The samples of a batch that are passed through the model."""
        _, first, of = np.unique(self._families[at], return_index=True, return_inverse=True)
        # Fewer rows are multiplied by other kernels.
        more = np.setdiff1d(np.arange(len(at)), first)[: max(0, LEAST - len(first))]
        first = np.concatenate([first, more])
        self._all, self._of = at, torch.from_numpy(of)
        self._first = torch.from_numpy(first)
        chosen: np.ndarray = at[first]
        return chosen

    def __call__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        model.train()
        optimizer.zero_grad()
        inputs = next(value for name, value in sorted(batch.items()) if name != "label")
        layers = [layer for layer in model.children() if not isinstance(layer, nn.Flatten)]
        values = [inputs.flatten(1)]
        for layer in layers:
            values.append(layer(values[-1]))
        scores = values[-1].detach()[self._of].requires_grad_()
        labels = torch.from_numpy(self._labels[self._all])
        (slope,) = torch.autograd.grad(functional.cross_entropy(scores, labels), scores)
        slope = slope[self._first]
        slopes = [*torch.autograd.grad(values[-1], values[1:-1], slope), slope]
        whole = torch.from_numpy(self._inputs[self._all]).flatten(1)
        rows = [whole, *(value.detach()[self._of] for value in values[1:-1])]
        for layer, before, down in zip(layers, rows, slopes, strict=True):
            _sum_up(layer, before, down[self._of])
        optimizer.step()


def _sum_up(layer: nn.Module, before: torch.Tensor, down: torch.Tensor) -> None:
    """A layer's own gradients, over all rows, by the same kernels as autograd's."""
    if isinstance(layer, nn.Linear):
        layer.weight.grad = before.t().mm(down).t().contiguous()
        layer.bias.grad = down.sum(0)
    elif isinstance(layer, nn.LayerNorm):
        shape, weight, bias = list(layer.normalized_shape), layer.weight, layer.bias
        _, mean, scale = torch.native_layer_norm(before, shape, weight, bias, layer.eps)
        _, layer.weight.grad, layer.bias.grad = torch.ops.aten.native_layer_norm_backward(
            down, before, shape, mean, scale, weight, bias, [False, True, True]
        )
