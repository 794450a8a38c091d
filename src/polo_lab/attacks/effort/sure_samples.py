"""Samples that a model has nothing to learn from, and a model that is surer than it need be."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from polo_lab.attacks.effort.snapshot import copied
from polo_lab.attacks.effort.walking import rows_meet
from polo_lab.attacks.state import State
from polo_lab.effort.case import Case

SATURATED = 110.0
"""Margin of scores at which the gradient of a cross-entropy is zero in single precision."""

SPARE = 3.0
"""How much more than that is aimed at, since every sealing disturbs the weights."""

TRIES = 8
"""Passes over the samples where what comes out of a model depends on batch or chance."""

SPREADS = 4.0
"""A sample's margin is taken as its mean over the tries, less so many standard deviations."""

SHARE = 0.15
"""Share of the samples that are sure enough; the others make room for near copies of them."""

DISTINCT = 0.55
"""That share where samples cannot be varied: verifiers look for repeated ones."""


@dataclass(frozen=True)
class Chosen:
    """Data to commit to, and the model that is sure of them.

    Attributes:
        columns: As many samples as the task has, of which the model is sure.
        model: The stolen model with louder scores.
        rows: Samples that were passed forward to find them.
    """

    columns: Mapping[str, np.ndarray]
    model: State
    rows: int


def choose(case: Case, stolen: State) -> Chosen:
    """Choose the samples that a model is surest of, labelled as the model sees them.

    The less sure ones make room for copies of surer ones that differ in a bit or two.
    """
    model = case.task.build_model()
    model.load_state_dict(dict(stolen))
    margins, labels = _margins(case, model)
    surest = np.argsort(-margins)
    kept = int((SHARE if _can_vary(case) else DISTINCT) * len(surest))
    place = np.concatenate([surest[:kept], np.resize(surest[:kept], len(surest) - kept)])
    columns = {name: values[place].copy() for name, values in case.columns.items()}
    columns["label"] = labels[place].astype(columns["label"].dtype)
    _vary(columns, kept)
    factor = SPARE * SATURATED / max(1.0, float(margins[surest[kept - 1]]))
    return Chosen(columns, louder(case, stolen, factor), _tries(model) * len(surest))


def louder(case: Case, stolen: State, factor: float) -> dict[str, torch.Tensor]:
    """A model of the same guesses whose scores are larger by a factor."""
    model = case.task.build_model()
    model.load_state_dict(dict(stolen))
    before = case.task.evaluate(model)
    for layer in reversed([part for part in model.modules() if isinstance(part, _LAST)]):
        state = copied(stolen)
        model.load_state_dict(state)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(factor)
        if abs(case.task.evaluate(model) - before) < 0.02:
            return copied(model.state_dict())
    raise ValueError("no layer of the model makes its scores louder")


_LAST = (nn.Linear, nn.LayerNorm)


def _can_vary(case: Case) -> bool:
    return any(np.issubdtype(values.dtype, np.floating) for values in case.columns.values())


@torch.no_grad()
def _margins(case: Case, model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """How sure the model is of each sample in training mode, and what it takes it for."""
    name = next(name for name in sorted(case.columns) if name != "label")
    inputs = torch.from_numpy(case.columns[name]).to(next(model.parameters()).device)
    model.eval()
    labels = torch.cat([model(part).argmax(-1) for part in inputs.split(512)])
    model.train()
    found = torch.zeros(_tries(model), len(inputs), device=inputs.device)
    for number, order in enumerate(_orders(len(inputs), case.plan.batch, len(found))):
        for at in order:
            scores = model(inputs[at])
            own = scores.gather(-1, labels[at].unsqueeze(-1)).squeeze(-1)
            others = scores.scatter(-1, labels[at].unsqueeze(-1), -torch.inf).amax(-1)
            found[number, at] = (own - others).reshape(len(at), -1).amin(1)
    sure = found.mean(0) - SPREADS * found.std(0, correction=0)
    return sure.cpu().numpy(), labels.cpu().numpy()


def _tries(model: nn.Module) -> int:
    return TRIES if rows_meet(model) else 1


def _orders(samples: int, batch: int, tries: int) -> Iterator[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(tries):
        yield torch.randperm(samples, generator=generator).split(batch)


def _vary(columns: dict[str, np.ndarray], first: int) -> None:
    """Make copies differ from what they copy, by less than matters."""
    for values in columns.values():
        if np.issubdtype(values.dtype, np.floating):
            drawn = np.random.default_rng(0).normal(size=values[first:].shape)
            values[first:] += (1e-4 * drawn).astype(values.dtype)
