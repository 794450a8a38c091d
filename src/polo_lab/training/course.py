"""How a model is trained: everything but the model and the data."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("linear", "cosine", "steps", "constant")
FILLINGS = ("reflect", "constant")
PRECISIONS = ("auto", "bf16", "float32")


@dataclass(frozen=True)
class Augmentation:
    """How each image is varied, by itself.

    Attributes:
        pad: It is shifted by up to so many pixels, each way.
        filling: What comes in at the edge: the image's reflection (`reflect`), or black
            (`constant`).
        mirror: Whether half of the images are mirrored.
    """

    pad: int = 4
    filling: str = "reflect"
    mirror: bool = True

    def __post_init__(self) -> None:
        _one_of(self.filling, FILLINGS)


@dataclass(frozen=True)
class Course:
    """How a model is trained.

    Attributes:
        epochs: Passes over the data.
        rate: The highest learning rate.
        batch: Samples per step. Only whole batches are trained on; what is left over of a pass is
            other samples every time.
        schedule: `linear` falls in a straight line to zero, `cosine` along a cosine, `steps` by a
            factor of ten every thirty epochs, as the paper has it, `constant` not at all.
        rise: Part of the training in which the rate rises from zero first. With `linear` that is
            one cycle.
        optimizer: `sgd` or `adamw`.
        momentum: Momentum of SGD.
        nesterov: Whether it is Nesterov's.
        decay: Weight decay.
        smoothing: Part of a label that is spread over all classes.
        augmentation: How images are varied; None for not at all.
        precision: `bf16` runs layers in bfloat16, `float32` does not, `auto` does on a GPU.
        channels_last: Whether images and weights lie in memory as GPUs like it.
        compile: A mode of `torch.compile`, such as `default` or `reduce-overhead`, which a
            processor does without; or the name of another backend, such as `aot_eager`; empty for
            none.
    """

    epochs: int
    rate: float
    batch: int = 256
    schedule: str = "linear"
    rise: float = 0.0
    optimizer: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = True
    decay: float = 5e-4
    smoothing: float = 0.0
    augmentation: Augmentation | None = None
    precision: str = "auto"
    channels_last: bool = True
    compile: str = ""

    def __post_init__(self) -> None:
        _one_of(self.schedule, SCHEDULES)
        _one_of(self.optimizer, OPTIMIZERS)
        _one_of(self.precision, PRECISIONS)

    def rate_at(self, done: float) -> float:
        """The learning rate when some part of the training is done."""
        if done < self.rise:
            return self.rate * done / self.rise
        left = (1 - done) / (1 - self.rise) if self.rise < 1 else 0.0
        if self.schedule == "linear":
            return self.rate * left
        if self.schedule == "cosine":
            return self.rate * 0.5 * (1 - math.cos(math.pi * left))
        if self.schedule == "steps":
            return float(self.rate * 0.1 ** math.floor(done * self.epochs / 30))
        return self.rate

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, in as few launches as there can be."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        quick: dict[str, Any] = {"fused" if parameters[0].is_cuda else "foreach": True}
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, self.rate, weight_decay=self.decay, **quick)
        return torch.optim.SGD(
            parameters,
            self.rate,
            momentum=self.momentum,
            nesterov=self.nesterov and self.momentum > 0,
            weight_decay=self.decay,
            **quick,
        )

    def dtype(self, device: torch.device) -> torch.dtype:
        """What layers run in."""
        half = self.precision == "bf16" or (self.precision == "auto" and device.type == "cuda")
        return torch.bfloat16 if half else torch.float32


def _one_of(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")
