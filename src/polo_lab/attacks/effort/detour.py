"""Detours through a dead model: two faked segments that make all segments between them free.

In a model whose last hidden layer is switched off, every step is known in closed
form: only the last bias moves, by the labels alone. A forger trains a little, jumps into such a
state, lets it run at no cost, and jumps back before the shard is sealed. What is counted are two
faked segments; what was saved is nearly all of the shard.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from polo_lab.attacks.effort.forging import Forgery
from polo_lab.attacks.effort.grafts import usual
from polo_lab.attacks.effort.snapshot import Snapshot, copied
from polo_lab.attacks.effort.walking import count
from polo_lab.effort.case import Attempt, Case

DEAD = 20.0
"""How far biases are taken down; few inputs get a unit above zero again."""

FORWARD = 1 / 3
"""Share of a step that its pass forward takes; batch-norm statistics need it."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Detour:
    """One shard trained in full, a little of all others, and the rest of them spent dead.

    Args:
        share: Part of each later shard that is trained.
    """

    knowledge = "the task"
    data = "the task's own"
    name = "detours through a dead model"
    description = (
        "trains the first shard and a little of all others, and spends the rest of those in a "
        "state whose steps are known in closed form"
    )

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self.budget = f"one shard, and {share:.0%} of all others"

    def run(self, case: Case, folder: Path) -> Attempt:
        """See `Attack`."""
        forgery = Forgery(case, folder)
        forgery.begin()
        layers = _last_layers(forgery.engine.model)
        forgery.train(forgery.segments)
        forgery.seal()
        faked = 0
        for _ in range(1, forgery.shards):
            forgery.train(max(2, round(self._share * forgery.segments)))
            if layers and forgery.segments - forgery.segment > 2:
                self._spend(forgery, layers)
                faked += 2
            else:
                forgery.train(forgery.segments - forgery.segment)
            forgery.seal()
        total = forgery.shards * forgery.segments
        return forgery.finish(f"{faked} of {total} segments faked", possible=faked > 0)

    def _spend(self, forgery: Forgery, layers: tuple[str, str]) -> None:
        """Go into a dead state, stay there, and come back to where it was left."""
        alive, claim = forgery.now, usual(forgery)
        forgery.jump(_switched_off(forgery, layers[0]), claim)
        step = _Known(layers[1])
        norms = any(isinstance(part, _NORMS) for part in forgery.engine.model.modules())
        forgery.task.use(step, FORWARD if norms else 0.0)
        forgery.train(forgery.segments - forgery.segment - 1)
        forgery.task.use()
        back = copied(alive.model)
        # A state that comes twice is found, and marks may be there already.
        back[f"{layers[0]}.bias"][0] += 1e-5
        count(back, forgery.now.model, len(forgery.span))
        forgery.jump(forgery.pressed(Snapshot(back, alive.rest)), claim)


class _Known:
    """A step in which only the last bias has a gradient.

    Args:
        last: Name of the last layer.
    """

    def __init__(self, last: str) -> None:
        self._last = last

    def __call__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
    ) -> None:
        model.train()
        if any(isinstance(part, _NORMS) for part in model.modules()):
            with torch.no_grad():
                model(next(value for name, value in sorted(batch.items()) if name != "label"))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        bias, labels = model.get_submodule(self._last).bias, batch["label"]
        assert isinstance(bias, nn.Parameter)
        scores = bias.detach().expand(len(labels), -1).clone().requires_grad_()
        functional.cross_entropy(scores, labels).backward()
        assert scores.grad is not None
        bias.grad = scores.grad.sum(0)
        optimizer.step()


def _last_layers(model: nn.Module) -> tuple[str, str] | None:
    """The last hidden layer and the last one, if the model is a plain sequence that ends so."""
    if not isinstance(model, nn.Sequential):
        return None
    linear = [name for name, part in model.named_children() if isinstance(part, nn.Linear)]
    return (linear[-2], linear[-1]) if len(linear) > 1 else None


def _switched_off(forgery: Forgery, layer: str) -> Snapshot:
    model = copied(forgery.now.model)
    model[f"{layer}.bias"].sub_(DEAD)
    count(model, forgery.now.model, len(forgery.span))
    steps = (forgery.shard - 1) * forgery.steps + forgery.span.stop
    rest = {
        name: torch.full_like(value, float(steps)) if name.startswith("step/") else value
        for name, value in forgery.now.rest.items()
    }
    return Snapshot(model, rest)
