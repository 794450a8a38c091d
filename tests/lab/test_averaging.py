import pytest
import torch

from polo_lab.attacks.averaging import (
    average_while_finetuning,
    mean,
    mean_of_finetuned,
    moving_average,
)
from polo_lab.attacks.finetune import finetune


def states(*values):
    return [{"w": torch.full((2, 2), v), "seen": torch.tensor(int(v))} for v in values]


def test_the_mean_takes_all_alike_and_the_last_counter():
    found = mean(states(1.0, 2.0, 6.0))
    assert torch.equal(found["w"], torch.full((2, 2), 3.0))
    assert found["w"].dtype == torch.float32
    assert int(found["seen"]) == 6


def test_the_moving_average_is_the_one_by_hand():
    values = (4.0, 8.0, -2.0, 1.0)
    by_hand = values[0]
    for value in values[1:]:
        by_hand = 0.9 * by_hand + 0.1 * value
    found = moving_average(states(*values), 0.9)["w"]
    assert torch.allclose(found, torch.full((2, 2), by_hand))


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_the_ends_of_decay_are_the_last_and_the_first(decay):
    found = moving_average(states(3.0, 5.0), decay)["w"]
    assert torch.equal(found, torch.full((2, 2), 3.0 if decay else 5.0))


def test_copies_are_tuned_apart_and_averaged(task, make_proof):
    made = make_proof(epochs=6)
    before = made.model[3].weight.detach().clone()
    options = {"epochs": 2, "learning_rate": 0.05}
    torch.manual_seed(1)
    copies = [finetune(made.model, task.train_epoch, **options)[3].weight for _ in range(4)]
    torch.manual_seed(1)
    merged = mean_of_finetuned(made.model, task.train_epoch, copies=4, **options)
    assert not torch.equal(copies[0], copies[1])
    assert torch.allclose(merged[3].weight, torch.stack(copies).mean(dim=0), atol=1e-6)
    assert torch.equal(made.model[3].weight, before)
    assert task.evaluate(merged) >= task.evaluate(made.model) - 0.1


def test_the_average_of_a_finetuning_lies_behind_it(task, make_proof):
    made = make_proof(epochs=6)
    options = {"epochs": 3, "learning_rate": 0.05}
    torch.manual_seed(1)
    tuned = average_while_finetuning(made.model, task.train_epoch, decay=0.0, **options)
    torch.manual_seed(1)
    averaged = average_while_finetuning(made.model, task.train_epoch, decay=0.9, **options)
    start = made.model[3].weight.detach()

    def distance(model):
        return float((model[3].weight.detach() - start).norm())

    assert 0 < distance(averaged) < distance(tuned)
    assert task.evaluate(averaged) >= task.evaluate(made.model) - 0.1
