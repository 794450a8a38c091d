"""What is trained, and how: a task, an optimizer, a number of epochs, and the thief's share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from polo_lab.effort.training import LabTask
from polo_lab.tasks import DigitsConv
from polo_lab.tasks.cifar_varied import CifarVaried
from polo_lab.tasks.norms import DigitsNorms


@dataclass(frozen=True)
class Course:
    """A task and how it is trained: SGD whose rate falls in a straight line, perhaps after a rise.

    Attributes:
        task: Makes the task.
        title: What it is, for the page.
        epochs: Passes over the data; each may end in a shard.
        rate: The highest learning rate.
        batch: Samples per step.
        decay: Weight decay.
        thief: Epochs that an overwriter spends, at the full rate.
        rise: Part of the training in which the rate rises from zero.
    """

    task: Callable[[], LabTask]
    title: str
    epochs: int
    rate: float
    batch: int = 64
    decay: float = 5e-4
    thief: int = 5
    rise: float = 0.0

    def rate_at(self, done: float) -> float:
        """The learning rate when some part of the training is done."""
        if done < self.rise:
            return self.rate * done / self.rise
        return self.rate * (1 - done) / (1 - self.rise)

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """The optimizer."""
        return torch.optim.SGD(
            model.parameters(), lr=self.rate, momentum=0.9, weight_decay=self.decay
        )


COURSES = {
    "digits": Course(
        DigitsConv, "digits, two convolutions and two linear layers, 72,000 weights", 12, 0.03
    ),
    "norms": Course(
        DigitsNorms,
        "digits, eight residual blocks, 540,000 weights and 4608 norm scales",
        12,
        0.05,
    ),
    "resnet18": Course(
        CifarVaried,
        "CIFAR-10, ResNet-18 in bfloat16, 11 million weights and 4800 norm scales",
        30,
        0.1,
        batch=256,
        rise=0.15,
    ),
}


class Loop:
    """Passes over a task's data, which lie on the device that the model is on.

    Args:
        task: The task.
        course: How it is trained.
        device: Where.
    """

    def __init__(self, task: LabTask, course: Course, device: torch.device) -> None:
        self._task = task
        self._course = course
        # Batches have one size, so that the fastest kernels are worth looking for.
        torch.backends.cudnn.benchmark = device.type == "cuda"
        self._columns = {
            name: torch.from_numpy(values).to(device)
            for name, values in task.train_columns().items()
        }
        self._samples = len(next(iter(self._columns.values())))
        self._steps = 0

    def epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass in random order, at whatever rate the optimizer has."""
        for batch in self._batches():
            self._task.train_step(model, optimizer, batch)

    def falling_epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One pass of the course, at a rate that reaches zero at its end."""
        total = self._course.epochs * -(-self._samples // self._course.batch)
        for batch in self._batches():
            for group in optimizer.param_groups:
                group["lr"] = self._course.rate_at(self._steps / total)
            self._task.train_step(model, optimizer, batch)
            self._steps += 1

    def inputs(self, count: int) -> torch.Tensor:
        """So many inputs, without labels."""
        name = next(name for name in self._columns if name != "label")
        return self._columns[name][:count]

    def _batches(self) -> Iterator[dict[str, torch.Tensor]]:
        device = next(iter(self._columns.values())).device
        for chosen in torch.randperm(self._samples).to(device).split(self._course.batch):
            yield {name: values[chosen] for name, values in self._columns.items()}
