"""A training state that a forger keeps, compares and edits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from polo.evidence.replay.engine import Engine
from polo.evidence.replay.state import moves, named_rest, parameter_names
from polo.weights.checkpoint import MemoryCheckpoint
from polo_lab.attacks.state import State


@dataclass(frozen=True)
class Snapshot:
    """Model and optimizer at one moment, in main memory of their own.

    Attributes:
        model: The model's tensors, as `state_dict` gives them.
        rest: The optimizer's, as `KEY/PARAMETER`; empty before its first step.
    """

    model: State
    rest: State = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(tensor.nbytes for side in (self.model, self.rest) for tensor in side.values())

    def checkpoints(self) -> tuple[MemoryCheckpoint, MemoryCheckpoint | None]:
        """As engine and digests take it."""
        return MemoryCheckpoint(self.model), MemoryCheckpoint(self.rest) if self.rest else None

    def moved_to(self, other: "Snapshot", trained: Sequence[str]) -> tuple[int, int]:
        """The moves that an honest record has for going from here to there.

        Args:
            other: Where to.
            trained: Names of the trained parameters, each once.
        """
        one, two = (
            ({name: at.model[name] for name in trained}, dict(at.rest)) for at in (self, other)
        )
        return moves(one, two)

    def with_model(self, model: State) -> "Snapshot":
        """The same optimizer beside another model."""
        return replace(self, model=copied(model))


def taken(engine: Engine) -> Snapshot:
    """The state that an engine is in."""
    rest = named_rest(parameter_names(engine.model), engine.optimizer)
    return Snapshot(copied(engine.model.state_dict()), copied(rest))


def put(engine: Engine, snapshot: Snapshot) -> None:
    """Put an engine into a state."""
    engine.restore(*snapshot.checkpoints())


def copied(state: State) -> dict[str, torch.Tensor]:
    """Tensors in main memory of their own; tied ones stay tied."""
    made: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
    for tensor in state.values():
        key = tensor.data_ptr(), tuple(tensor.shape)
        if key not in made or not tensor.numel():
            made[key] = tensor.detach().cpu().clone()
    return {name: made[tensor.data_ptr(), tuple(tensor.shape)] for name, tensor in state.items()}


def between(one: State, other: State, share: float) -> dict[str, torch.Tensor]:
    """The model at a share of the straight way; counters are those of the nearer end."""
    state = copied(one if share < 0.5 else other)
    with torch.no_grad():
        for name, tensor in state.items():
            if tensor.is_floating_point():
                tensor.copy_(torch.lerp(one[name].double(), other[name].double(), share))
    return state


def length(one: State, other: State, names: Sequence[str]) -> float:
    """Euclidean distance of two models in some tensors."""
    gaps = ((one[name].double() - other[name].double()).square().sum() for name in names)
    return math.sqrt(float(sum(gaps)))
