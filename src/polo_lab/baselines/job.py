"""What every baseline trains: a task by name and plain settings, the same for all of them.

All train through `polo.evidence.replay.stepping`, the engine that replay itself runs on, with the
data on the device: what a method takes beyond `plain` is what the method takes.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from polo import tasks
from polo.errors import TaskError
from polo.evidence.replay import platform
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.order import Order
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.stepping import Batch, Stepper
from polo.protocol.digest import tagged, u64
from polo_lab.effort.training import LabTask
from polo_lab.schemes.training import Setting
from polo_lab.tasks.pair import Pair
from polo_lab.training import DivergedError
from polo_lab.training.shared_loss import SharedLoss

Indices = list[NDArray[np.int64]]
"""The samples of each step."""


@dataclass(frozen=True)
class Job:
    """A training; what is drawn comes from the seed.

    Attributes:
        task: Name of a task, or `module:object`.
        epochs: Passes over the data.
        batch: Samples per step.
        rate: The highest learning rate.
        optimizer: `sgd`, `adam` or `adamw`.
        momentum: Of SGD.
        decay: Weight decay.
        schedule: How the rate falls: `constant`, `cosine` or `linear`.
        rise: Part of the training in which the rate rises.
        every: Steps between two checkpoints of a trajectory; 0 for a quarter of an epoch.
        seed: Seed of the start, of the order of samples and of all else.
        device: Where to train; empty for a GPU if there is one.
        exact: Whether a GPU must take kernels that come out the same every time.
        compiled: Whether steps are compiled, where the task can (`Pair.compiled`) and there is a
            GPU.
    """

    task: str = "lab-digits"
    epochs: int = 4
    batch: int = 64
    rate: float = 0.03
    optimizer: str = "sgd"
    momentum: float = 0.9
    decay: float = 5e-4
    schedule: str = "cosine"
    rise: float = 0.0
    every: int = 0
    seed: int = 0
    device: str = ""
    exact: bool = True
    compiled: bool = True

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The job in some settings; what is no setting of a job is left to others."""
        own = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in settings.items() if name in own})

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, as `of` takes them."""
        return asdict(self)

    @cached_property
    def lab_task(self) -> LabTask:
        """The task."""
        found = tasks.load(self.task)
        if not isinstance(found, tasks.Task) or not hasattr(found, "train_columns"):
            raise TaskError(f"the task {self.task!r} brings no data to train on")
        return cast(LabTask, found)

    @cached_property
    def where(self) -> str:
        """The device."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def data_root(self) -> bytes:
        """The root of a commitment to the data, hashed anew."""
        salt = tagged("lab/salt", u64(self.seed))
        return DataSource(self.lab_task.train_columns(), salt).root

    @cached_property
    def columns(self) -> dict[str, torch.Tensor]:
        """The training data on the device, column by column."""
        found = self.lab_task.train_columns()
        return {name: torch.from_numpy(found[name]).to(self.where) for name in found}

    @cached_property
    def samples(self) -> int:
        """Number of training samples."""
        return len(next(iter(self.columns.values())))

    @property
    def pass_steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        """Steps of the training."""
        return self.epochs * self.pass_steps

    @property
    def apart(self) -> int:
        """Steps between two checkpoints."""
        return self.every or -(-self.pass_steps // 4)

    @cached_property
    def recipe(self) -> Recipe:
        """Optimizer and rates."""
        falls = self.schedule != "constant"
        return Recipe(
            samples=self.samples,
            batch=self.batch,
            rate=self.rate,
            optimizer=self.optimizer,
            momentum=self.momentum,
            decay=self.decay,
            schedule=self.schedule,
            warmup=int(self.rise * self.steps),
            total=self.steps if falls else 0,
            every=self.apart,
        )

    @cached_property
    def order(self) -> Order:
        """The order of samples, and the seed of each step."""
        return Order(self.order_seed, self.samples, self.batch)

    @property
    def order_seed(self) -> bytes:
        """What the order comes from."""
        return tagged("lab/order", u64(self.seed))

    def stepper(self) -> Stepper:
        """A model at the start that the seed stands for, with its optimizer."""
        torch.manual_seed(self.seed)
        return Stepper(self.lab_task, self.recipe, device=self.where)

    def tuner(
        self, model: torch.nn.Module, part: float, *, decay: float | None = None
    ) -> torch.optim.Optimizer:
        """An optimizer of the job's kind, at a constant rate, for whoever fine-tunes a model.

        Args:
            model: The model.
            part: Part of the job's rate.
            decay: Weight decay; None for the job's.
        """
        steady = self.recipe.changed(
            rate=part * self.rate,
            decay=self.decay if decay is None else decay,
            schedule="constant",
            warmup=0,
            total=0,
        )
        return steady.optimizer(model)

    def indices(self, first: int, stop: int) -> Indices:
        """The samples of some steps, in the job's order."""
        return [self.order.batch(step) for step in range(first, stop)]

    def batches(self, indices: Indices) -> Iterator[Batch]:
        """The samples of some steps, from the device; their numbers go there in one piece."""
        if not indices:
            return
        chosen = torch.from_numpy(np.concatenate(indices)).to(self.where)
        for part in chosen.split([len(step) for step in indices]):
            yield {name: values[part] for name, values in self.columns.items()}

    def evaluate(self, model: torch.nn.Module) -> float:
        """The task's metric of a model, unless its training has diverged."""
        self.check_finite(model)
        return self.lab_task.evaluate(model)

    def check_finite(self, model: torch.nn.Module) -> None:
        """Raise DivergedError if weights are no numbers any more."""
        finite = [parameter.isfinite().all() for parameter in model.parameters()]
        if not bool(torch.stack(finite).all()):
            raise DivergedError("weights are no numbers any more", advice="Lower the rate.")

    def train(
        self,
        stepper: Stepper,
        first: int,
        stop: int,
        *,
        pressed: Callable[[int, torch.Tensor | float], None] | None = None,
    ) -> None:
        """Run steps of the job, counted from its start."""
        for begin in range(first, stop, self.pass_steps):
            end = min(stop, begin + self.pass_steps)
            batches = self.batches(self.indices(begin, end))
            stepper.steps(begin, batches, self.seeds(begin), pressed=pressed)

    def seeds(self, first: int) -> Callable[[int], int]:
        """What generators are seeded with, by the number of a step counted from `first`."""
        return lambda at: self.order.seed(first + at)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Kernels as the job wants them, all compiled before; afterwards as they were."""
        backend = torch.backends.cudnn
        before = backend.benchmark, backend.deterministic
        backend.benchmark, backend.deterministic = not self.exact, self.exact
        try:
            with self._compiling():
                yield
        finally:
            backend.benchmark, backend.deterministic = before

    def how_compiled(self) -> str:
        """What steps were compiled by; empty for not at all, or why it failed."""
        with self._compiling() as shared:
            return (shared.compiled or shared.problem) if shared else ""

    def _compiling(self) -> AbstractContextManager[SharedLoss | None]:
        task = self.lab_task
        if self.compiled and isinstance(task, Pair) and self.samples >= self.batch:
            return task.compiled(self.batch, self.where)
        return nullcontext()

    @property
    def platform(self) -> str:
        """The machine, as records of replay describe it."""
        return platform.text_of(platform.describe(self.where))


def setting_of(settings: Mapping[str, Any]) -> Setting:
    """How marks are made, by the settings `scheme`, `bits`, `load` and `strength`."""
    return Setting(
        scheme=settings.get("scheme", "ednn"),
        bits=settings.get("bits", 256),
        load=settings.get("load"),
        strength=settings.get("strength"),
    )


@contextmanager
def room(folder: Path | None) -> Iterator[Path]:
    """A folder to write into: the given one, or one that goes away afterwards."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="polo-lab-") as name:
        yield Path(name)


class Clock:
    """Raw seconds by phase; a GPU has done its work when a phase begins and when it ends.

    Args:
        device: Where the work is done.

    Attributes:
        seconds: Seconds so far, by phase.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done in here counts as this phase."""
        self._wait()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            took = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took

    def total(self, names: Iterable[str] | None = None) -> float:
        """Seconds of some phases, or of all."""
        return sum(self.seconds.get(name, 0.0) for name in names or self.seconds)

    def _wait(self) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)
