"""Averaging: a model made of several, none of which is the stolen one.

The paper's *collusion* (a footnote of its table of attacks): who holds several versions averages
them, hoping that what differs between them is the mark.
"""

import copy
from collections.abc import Sequence

import torch

from polo_lab.attacks.finetune import TrainEpoch, finetune
from polo_lab.attacks.state import State


def mean(states: Sequence[State]) -> dict[str, torch.Tensor]:
    """The mean of several models, tensor by tensor; counters are the last one's."""
    return _weighted(states, [1 / len(states)] * len(states))


def moving_average(states: Sequence[State], decay: float) -> dict[str, torch.Tensor]:
    """The exponential moving average of models in their order, starting at the first.

    Args:
        states: The models, oldest first.
        decay: How much of the average each new model leaves.
    """
    newer = range(len(states) - 1, 0, -1)
    weights = [decay ** (len(states) - 1), *((1 - decay) * decay ** (at - 1) for at in newer)]
    return _weighted(states, weights)


def mean_of_finetuned(
    model: torch.nn.Module,
    train_epoch: TrainEpoch,
    *,
    copies: int,
    epochs: int,
    learning_rate: float,
) -> torch.nn.Module:
    """The mean of copies that were each fine-tuned from the stolen model on their own."""
    tuned = [
        finetune(model, train_epoch, epochs=epochs, learning_rate=learning_rate)
        for _ in range(copies)
    ]
    merged = copy.deepcopy(model)
    merged.load_state_dict(mean([item.state_dict() for item in tuned]))
    return merged


def average_while_finetuning(
    model: torch.nn.Module,
    train_epoch: TrainEpoch,
    *,
    epochs: int,
    learning_rate: float,
    decay: float,
) -> torch.nn.Module:
    """The moving average of the stolen model and its state after each epoch of fine-tuning."""
    states = [copy.deepcopy(model.state_dict())]
    tuned = model
    for _ in range(epochs):
        tuned = finetune(tuned, train_epoch, epochs=1, learning_rate=learning_rate)
        states.append(copy.deepcopy(tuned.state_dict()))
    merged = copy.deepcopy(model)
    merged.load_state_dict(moving_average(states, decay))
    return merged


def _weighted(states: Sequence[State], weights: Sequence[float]) -> dict[str, torch.Tensor]:
    averaged = {}
    for name, last in states[-1].items():
        averaged[name] = last.detach().clone()
        if last.is_floating_point():
            parts = [
                part * state[name].double() for part, state in zip(weights, states, strict=True)
            ]
            averaged[name] = torch.stack(parts).sum(dim=0).to(last.dtype)
    return averaged
