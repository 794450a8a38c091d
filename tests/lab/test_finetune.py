import copy

import torch

from polo_lab.attacks.finetune import finetune
from polo_lab.attacks.state import weights_of


def test_it_trains_a_copy_and_leaves_the_stolen_model_alone(task, make_proof):
    made = make_proof(epochs=2)
    before = copy.deepcopy(made.model.state_dict())
    tuned = finetune(made.model, task.train_epoch, epochs=3, learning_rate=0.05)
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name])
    moved = [n for n, v in tuned.state_dict().items() if not torch.equal(v, before[n])]
    assert set(weights_of(before)) <= set(moved)
    assert task.evaluate(tuned) >= task.evaluate(made.model) - 0.05


def test_more_epochs_and_a_higher_rate_move_the_weights_further(task):
    torch.manual_seed(0)
    model = task.build_model()

    def moved(**options):
        torch.manual_seed(1)
        tuned = finetune(model, task.train_epoch, **options)
        return float((tuned[3].weight - model[3].weight).detach().norm())

    short = moved(epochs=1, learning_rate=0.001)
    assert 0 < short < moved(epochs=3, learning_rate=0.001) < moved(epochs=3, learning_rate=0.05)
    assert moved(epochs=0, learning_rate=0.05) == 0
