"""Tasks: what a model is trained for, as the verifier sees it.

A task belongs to the verifier: it builds the model, holds the public test set and says how good
a shard must be. It comes by a registered name (entry-point group `polo.tasks`) or as
`module:object` from the verifier's own environment; never from a proof.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from polo.errors import TaskError

if TYPE_CHECKING:
    import torch

GROUP = "polo.tasks"


@runtime_checkable
class Task(Protocol):
    """What a verifier needs to know about a task.

    Attributes:
        name: The name that terms use.
        version: Raised whenever model, test set or metric change.
        metric: The name under which provers report the metric.
        floor: The least metric of shard 1, 2, …; the last number holds from there on.
    """

    name: str
    version: int
    metric: str
    floor: tuple[float, ...]

    def build_model(self) -> "torch.nn.Module":
        """A model of the task's architecture, untrained."""

    def evaluate(self, model: "torch.nn.Module") -> float:
        """The metric of a model on the public test set, from 0 to 1."""


def names() -> list[str]:
    """Names of all registered tasks."""
    return sorted(entry.name for entry in importlib.metadata.entry_points(group=GROUP))


def load(name: str) -> Task:
    """A task by registered name, or by `module:object`."""
    if ":" in name:
        return _checked(_import(name), name)
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name == name:
            return _checked(_import(entry.value), name)
    known = ", ".join(names()) or "none"
    raise TaskError(
        f"the task {name!r} is unknown here; registered: {known}",
        advice="Install the package that offers it, or give it as module:object.",
    )


def _import(path: str) -> object:
    module, _, attribute = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise TaskError(
            f"the task {path!r} cannot be loaded: {error}",
            advice="Is that its name? Install what it needs. Who verifies can do without: "
            "--accuracy none.",
        ) from error
    return found() if isinstance(found, type) else found


def _checked(task: object, name: str) -> Task:
    if not isinstance(task, Task):
        raise TaskError(f"{name!r} is no task: it lacks part of the interface polo.tasks.Task")
    return task
