"""Spoofed replay: a made-up trajectory that is to come out within the tolerance of a replay.

After Zhang et al., "Adversarial examples for proof-of-learning" (2022): begin near the stolen
weights, so that every step is small; or choose the data so that a step from one made-up state
leads near the next. Here the data are committed to before the start is drawn, so they are chosen
for a guessed one.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.machines import foreign
from polo_lab.attacks.effort.snapshot import between, copied
from polo_lab.attacks.effort.walking import scatter, walk
from polo_lab.attacks.state import State
from polo_lab.effort.case import Attempt, Case

KINDS = ("near", "small", "batches")
ROUNDS = 40
"""Rounds of choosing the data."""


class Spoofing:
    """States that no training led to, on a machine that is said to round otherwise.

    Args:
        kind: `near` begins next to the stolen weights; `small` takes small steps from the drawn
            start; `batches` chooses the data so that their gradients point to the stolen weights.
    """

    knowledge = "a finished model of the task"
    data = "the task's own; `batches` chooses it"

    def __init__(self, kind: str = "small") -> None:
        self._kind = kind
        self.name = f"spoofed replay, {kind}"
        chosen = f"{ROUNDS} rounds of choosing data" if kind == "batches" else ""
        self.budget = chosen or "no gradients"
        self.description = {
            "near": "begins next to the stolen weights, so that every step is small",
            "small": "goes from the drawn start to the stolen weights by small steps",
            "batches": "chooses data whose gradients at a guessed start point to the stolen model",
        }[kind] + ", and says that its machine rounds otherwise"

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        stolen = case.victim.state
        who, rounds = None, 0
        if self._kind == "batches":
            columns, rounds = _aimed(case, stolen)
            who = case.enrol("attacker with aimed data", columns)
        forgery = Forgery(case, folder, who=who, machine=foreign(case.device))
        forgery.task.rows += rounds * forgery.recipe.batch
        origin = forgery.begin(_near(case, stolen) if self._kind == "near" else None).model
        miss = self._miss(forgery, origin, stolen)
        for number in range(1, forgery.shards + 1):
            walk(forgery, between(origin, stolen, number / forgery.shards))
            forgery.seal()
        return forgery.finish(f"its first real segment ends {miss:.2g} of the move away")

    def _miss(self, forgery: Forgery, origin: State, stolen: State) -> float:
        """How far a real segment ends from the made-up one, relative to the made-up move."""
        total = forgery.shards * forgery.segments
        model = copied(origin)
        probe = forgery.case.task.build_model()
        probe.load_state_dict(model)
        optimizer = forgery.recipe.optimizer(probe)
        forgery.recipe.set_rate(optimizer, 0)
        order = forgery.engine.order
        for step in forgery.span:
            batch = forgery.who.source.batch(order.batch(step))
            forgery.case.task.train_step(probe, optimizer, batch)
        wanted = between(origin, stolen, 1 / total)
        trained = [name for name, _ in probe.named_parameters()]
        end = copied(probe.state_dict())
        gap = sum(float((end[n].double() - wanted[n].double()).square().sum()) for n in trained)
        move = sum(float((wanted[n].double() - model[n].double()).square().sum()) for n in trained)
        return math.sqrt(gap / move)


def _near(case: Case, stolen: State) -> dict[str, torch.Tensor]:
    model = copied(stolen)
    scatter(model, 0.01, torch.Generator().manual_seed(case.seed))
    return model


def _aimed(case: Case, stolen: State) -> tuple[dict[str, np.ndarray], int]:
    """Data whose gradients at a guessed start point to the stolen weights, and rounds it took."""
    columns = {name: values.copy() for name, values in case.columns.items()}
    name = next(name for name in sorted(columns) if name != "label")
    if not np.issubdtype(columns[name].dtype, np.floating):
        return columns, 0
    size = min(case.plan.batch, case.samples)
    inputs = torch.from_numpy(columns[name][:size]).clone().requires_grad_()
    labels = torch.from_numpy(columns["label"][:size])
    torch.manual_seed(case.seed)
    guess = case.task.build_model().train()
    way = [stolen[n].detach() - p.detach() for n, p in guess.named_parameters()]
    chosen = torch.optim.Adam([inputs], lr=0.05)
    for _ in range(ROUNDS):
        chosen.zero_grad()
        _turned(guess, inputs, labels, way).backward()
        chosen.step()
    tiled = np.resize(inputs.detach().numpy(), columns[name].shape)
    drawn = np.random.default_rng(case.seed).normal(size=tiled.shape)
    made = (tiled + 1e-4 * drawn).clip(columns[name].min(), columns[name].max())
    columns[name] = made.astype(tiled.dtype)
    columns["label"] = np.resize(labels.numpy(), columns["label"].shape)
    # Each round differentiates twice, which takes about two steps' passes.
    return columns, 2 * ROUNDS


def _turned(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, way: list[torch.Tensor]
) -> torch.Tensor:
    """One less the cosine between a step down the gradient and the way to go."""
    scores = model(inputs)
    loss = functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    down, there = (torch.cat([part.flatten() for part in parts]) for parts in (slopes, way))
    return 1 + functional.cosine_similarity(down, there, dim=0)
