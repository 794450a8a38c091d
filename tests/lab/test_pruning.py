import pytest
import torch

from polo_lab.attacks.pruning import prune
from polo_lab.attacks.state import weights_of


@pytest.fixture
def state(task):
    torch.manual_seed(3)
    return task.build_model().state_dict()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_exactly_the_stated_share_is_zero(state, share):
    pruned = weights_of(prune(state, share))
    zeros = sum(int((value == 0).sum()) for value in pruned.values())
    total = sum(value.numel() for value in pruned.values())
    assert zeros == round(share * total)


def test_the_smallest_go_across_all_layers_and_the_rest_stays(state):
    pruned = prune(state, 0.4)
    kept, cut = [], []
    for name, value in weights_of(state).items():
        gone = pruned[name] == 0
        cut.append(value[gone].abs())
        kept.append(value[~gone].abs())
        assert torch.equal(pruned[name][~gone], value[~gone])
    assert torch.cat(cut).max() <= torch.cat(kept).min()
    shares = [len(gone) / (len(gone) + len(stays)) for gone, stays in zip(cut, kept, strict=True)]
    assert max(shares) - min(shares) > 0.1


def test_biases_norms_and_statistics_are_left_alone(state):
    pruned = prune(state, 0.9)
    for name in set(state) - set(weights_of(state)):
        assert torch.equal(pruned[name], state[name])


def test_ties_do_not_prune_more_than_asked():
    state = {"w": torch.full((4, 8), 0.5), "b": torch.zeros(4)}
    assert int((prune(state, 0.25)["w"] == 0).sum()) == 8


def test_a_model_without_weights_is_returned_as_it_is():
    state = {"scale": torch.ones(3)}
    assert torch.equal(prune(state, 0.5)["scale"], state["scale"])


def test_accuracy_is_kept_at_a_third(task, make_proof):
    made = make_proof(epochs=6)
    pruned = task.build_model()
    pruned.load_state_dict(prune(made.model.state_dict(), 0.3))
    assert task.evaluate(pruned) >= task.evaluate(made.model) - 0.1
