"""Fine-tuning: the thief trains on, without knowing any mark.

The paper's *fine-tuning overwrite* (Table of attacks, class OFA), without a mark of the thief's
own; `polo_lab.attacks.overwriting` is the one with.
"""

import copy
from collections.abc import Callable

import torch

TrainEpoch = Callable[[torch.nn.Module, torch.optim.Optimizer], None]
"""One pass over the task's training data, such as `Digits.train_epoch`."""


def finetune(
    model: torch.nn.Module,
    train_epoch: TrainEpoch,
    *,
    epochs: int,
    learning_rate: float,
    momentum: float = 0.9,
) -> torch.nn.Module:
    """A copy of the model, trained on by plain SGD.

    Args:
        model: The stolen model; it stays as it is.
        train_epoch: Trains it for an epoch on the task's data.
        epochs: How long.
        learning_rate: The learning rate.
        momentum: The momentum.
    """
    stolen = copy.deepcopy(model)
    optimizer = torch.optim.SGD(stolen.parameters(), lr=learning_rate, momentum=momentum)
    for _ in range(epochs):
        train_epoch(stolen, optimizer)
    return stolen
