"""Samples that take part in a batch and count for nothing.

A cross-entropy leaves out samples whose label is a certain number. Whoever commits to data of which
most samples are labelled so need only pass the others through the model. What is left out adds
zeros to every sum, so that even the last bits come out right if those sums are padded.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.nn import functional

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.machines import foreign
from polo_lab.effort.case import Attempt, Case

IGNORED = -100
"""The label that torch's cross-entropy leaves out."""

LEAST = 4
"""Rows that are passed through the model at least: fewer are multiplied by other kernels."""


class Masking:
    """Real training on few samples, declared as training on many.

    Args:
        share: Part of the samples that count.
        exact: Whether to pad sums so that they come out to the bit; otherwise another machine is
            named, whose rounding it could be.
    """

    knowledge = "the task"
    data = "the task's own, most labels replaced"

    def __init__(self, share: float = 0.2, *, exact: bool = False) -> None:
        self._share = share
        self._exact = exact
        self.budget = f"every step, for {share:.0%} of its samples"
        self.name = f"labels that the loss leaves out, {'to the bit' if exact else 'by rounding'}"
        self.description = (
            "commits to data most of whose labels the loss ignores, and passes the other samples "
            "alone through the model"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        columns = {name: values.copy() for name, values in case.columns.items()}
        masked = np.random.default_rng(case.seed).random(case.samples) >= self._share
        columns["label"][masked] = IGNORED
        who = case.enrol("attacker with masked labels", columns)
        machine = None if self._exact else foreign(case.device)
        forgery = Forgery(case, folder, who=who, machine=machine)
        padding = _Padding()

        def counting(indices: ArrayLike) -> dict[str, torch.Tensor]:
            at = np.asarray(indices)
            places = np.sort(
                np.argsort(masked[at], kind="stable")[: max(LEAST, (~masked[at]).sum())]
            )
            padding.rows, padding.places = len(at), torch.from_numpy(places)
            return who.source.batch(at[places])

        forgery.batch = counting
        if self._exact:
            forgery.task.use(padding.step)
        forgery.begin()
        for _ in range(forgery.shards):
            forgery.train(forgery.segments)
            forgery.seal()
        return forgery.finish(f"{1 - masked.mean():.0%} of the samples count")


class _Padding:
    """A step on part of a batch whose sums over rows are taken as if all rows were there."""

    def __init__(self) -> None:
        self.rows = 0
        self.places = torch.zeros(0, dtype=torch.int64)

    def step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        """A step on the cross-entropy of some rows."""
        model.train()
        optimizer.zero_grad()
        inputs = next(value for name, value in sorted(batch.items()) if name != "label")
        with _watched(model) as found:
            scores = model(inputs)
            labels = batch["label"].flatten().to(scores.device)
            functional.cross_entropy(scores.flatten(0, -2), labels).backward()
        for layer, gradient in found.items():
            padded = gradient.new_zeros(self.rows, *gradient.shape[1:])
            padded[self.places] = gradient
            layer.bias.grad = padded.reshape(-1, padded.shape[-1]).sum(0)
        optimizer.step()


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[nn.Linear, torch.Tensor]]:
    """The gradients at the outputs of linear layers with a bias, by layer."""
    found: dict[nn.Linear, torch.Tensor] = {}

    def watch(layer: nn.Module, _: object, out: torch.Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        out.register_hook(lambda gradient: found.__setitem__(layer, gradient))

    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    handles = [part.register_forward_hook(watch) for part in layers if part.bias is not None]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class Truncation:
    """Real training on the first places of every sequence, declared as training on all of them.

    Every sample counts, so exchanging one for another changes the step. Where samples are no
    sequences it leaves out whole ones, like `Masking`.

    Args:
        places: Places of a sequence that count.
    """

    knowledge = "the task"
    data = "the task's own, most labels replaced"

    def __init__(self, places: int = 4) -> None:
        self._places = places
        self.budget = f"every step, for {places} places of its sequences"
        self.name = f"labels that the loss leaves out, all but {places} places"
        self.description = (
            "commits to sequences whose labels the loss ignores but for the first places, and "
            "passes those alone through the model"
        )

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        if case.columns["label"].ndim < 2:
            return Masking(0.2).run(case, folder)
        columns = {name: values.copy() for name, values in case.columns.items()}
        columns["label"][:, self._places :] = IGNORED
        who = case.enrol("attacker with truncated sequences", columns)
        forgery = Forgery(case, folder, who=who, machine=foreign(case.device))

        def shortened(indices: ArrayLike) -> dict[str, torch.Tensor]:
            whole = who.source.batch(indices)
            return {name: values[:, : self._places] for name, values in whole.items()}

        forgery.batch = shortened
        share = self._places / columns["label"].shape[1]
        forgery.task.use(price=share)
        forgery.begin()
        for _ in range(forgery.shards):
            forgery.train(forgery.segments)
            forgery.seal()
        return forgery.finish(f"{share:.0%} of the places count")
