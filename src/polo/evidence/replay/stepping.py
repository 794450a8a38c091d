"""A task's steps of training, from any state: what is run again, with or without marks.

`polo.evidence.replay.engine` adds the mark of a shard and the record of a segment.
"""

from collections.abc import Callable, Iterable, Mapping

import torch

from polo.embedding.hook import StepHook
from polo.embedding.placement import parameters_of
from polo.errors import TaskError
from polo.evidence.replay.order import seed_generators
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.state import load_rest, rest_layout, state_checkpoints
from polo.protocol.layout import Layout
from polo.tasks import Task
from polo.tasks.training import Trainable
from polo.weights.checkpoint import Checkpoint, MemoryCheckpoint
from polo.weights.loading import Loader

Batch = Mapping[str, torch.Tensor]


class Stepper:
    """A task's model and optimizer, to be put into any state and run from there.

    Attributes:
        device: Where they are.
        model: The model.
        optimizer: The optimizer; `restore` makes another one.
        layout: The model's layout.
        rest_layout: That of the optimizer's state; None if it keeps none.
    """

    def __init__(self, task: Task, recipe: Recipe, *, device: str = "cpu") -> None:
        if not isinstance(task, Trainable):
            raise TaskError(
                f"the task {task.name!r} cannot be replayed: it has no columns or no train_step",
                advice="See polo.tasks.training.Trainable.",
            )
        self._task = task
        self._recipe = recipe
        self.device = device
        self.model = task.build_model().to(device)
        self._loader = Loader(self.model)
        self.layout = self._loader.layout
        self.optimizer = recipe.optimizer(self.model)
        self._parameters = _trained(self.model, self.optimizer)
        self.rest_layout: Layout | None = rest_layout(self.model, self.optimizer)

    @property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that are trained."""
        return frozenset(self._parameters)

    def restore(self, model: Checkpoint, rest: Checkpoint | None) -> None:
        """Put model and optimizer into a state; `rest` is None for an untouched optimizer."""
        self._loader.load(model)
        # Some loops clear gradients after a step, not before: none may be left over.
        self.model.zero_grad(set_to_none=True)
        self.optimizer = self._recipe.optimizer(self.model)
        if rest is not None:
            load_rest(self.optimizer, self.model, rest)

    def steps(
        self,
        first: int,
        batches: Iterable[Batch],
        seed: Callable[[int], int],
        *,
        pressed: Callable[[int, torch.Tensor | float], None] | None = None,
        stepped: Callable[[int], None] | None = None,
    ) -> int:
        """Run steps, as many as there are batches; returns how many those were.

        Args:
            first: The first step, counted over the whole training: it sets the rate.
            batches: What to train on, step by step.
            seed: What generators are seeded with, by the number of the step in this call.
            pressed: Adds to the gradients of a step (counted over the whole training), which are
                scaled by some factor.
            stepped: Told after every step how many are done.
        """
        done = 0

        def before(scale: torch.Tensor | float) -> None:
            self._recipe.set_rate(self.optimizer, first + done)
            if pressed:
                pressed(first + done, scale)

        def after() -> None:
            nonlocal done
            done += 1

        hook = StepHook(self.optimizer, before, after)
        try:
            for at, batch in enumerate(batches):
                seed_generators(seed(at))
                with torch.enable_grad():
                    self._task.train_step(self.model, self.optimizer, batch)
                if done != at + 1:
                    raise TaskError(
                        f"train_step of the task {self._task.name!r} made {done - at} optimizer "
                        "steps instead of one"
                    )
                if stepped:
                    stepped(done)
        finally:
            hook.detach()
        if self._loader.layout != self.layout:
            raise TaskError(
                f"train_step of the task {self._task.name!r} changes which tensors the model has"
            )
        return done

    def state(self) -> tuple[MemoryCheckpoint, MemoryCheckpoint | None]:
        """Model and optimizer as they are now; nothing is copied."""
        return state_checkpoints(self.model, self.optimizer)


def slopes(
    task: Trainable,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """The gradients that a task's step would follow; it is not taken.

    Buffers change as in a step. What is returned changes with the next call. The batch stays as it
    is, whatever the task does to what it is given.
    """

    def stop(_: torch.Tensor | float) -> None:
        raise _StoppedError

    hook = StepHook(optimizer, stop, lambda: None)
    # A task may clear gradients after its step, which is never made here.
    optimizer.zero_grad(set_to_none=True)
    try:
        seed_generators(seed)
        with torch.enable_grad():
            task.train_step(model, optimizer, {name: v.clone() for name, v in batch.items()})
    except _StoppedError:
        found = _trained(model, optimizer).items()
        return {name: p.grad for name, p in found if p.grad is not None}
    finally:
        hook.detach()
    raise TaskError("train_step of the task makes no optimizer step")


class _StoppedError(Exception):
    """A step was stopped before it was taken."""


def _trained(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.nn.Parameter]:
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name: p for name, p in parameters_of(model).items() if id(p) in given}
