"""The trainer that every figure is measured against: as fast as a good engineer would make it.

Data stay on the device as bytes, and images are shifted and mirrored there, many batches at once;
layers run in bfloat16 with channels last, compiled by choice; the optimizer is one launch, and
nothing in a step waits for the device. A `polo.Prover` can be attached; nothing else changes.
"""

from polo_lab.training.course import Augmentation, Course
from polo_lab.training.feed import Batch, Feed, Scale
from polo_lab.training.loop import Loop
from polo_lab.training.trainer import DivergedError, Epoch, Trained, evaluate, train, train_in

__all__ = [
    "Augmentation",
    "Batch",
    "Course",
    "DivergedError",
    "Epoch",
    "Feed",
    "Loop",
    "Scale",
    "Trained",
    "evaluate",
    "train",
    "train_in",
]
