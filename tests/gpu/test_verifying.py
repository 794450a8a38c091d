"""Verification on a GPU: checkpoints are loaded beside the test of the one before."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.storage.folder import checkpoint_path
from polo.verifier import Outcome, Status, accuracy
from polo.weights import checkpoint_of, commit
from polo.weights.checkpoint import HeldCheckpoint
from polo.weights.loading import Loader, NotLoadedError


def test_what_is_tested_is_what_was_hashed(
    make_proof: Callable[..., Any], task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, roots = make_proof(epochs=6), list[bytes]()
    monkeypatch.setattr(accuracy, "MANY", 3)

    class There(type(task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            # The device is still busy with this when the next one is loaded.
            torch.cuda._sleep(10**8)
            roots.append(commit(checkpoint_of(model)).root)
            return float(super().evaluate(copy.deepcopy(model).cpu()))

    there = There(lambda: task.build_model().cuda())
    for model in (None, made.path / checkpoint_path(6)):
        verdict = polo.verify(made.path, trust=made.issuer.public_key, task=there, model=model)
        assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    wanted = [shard.root for shard in reversed(made.manifest.shards)]
    assert roots == wanted * 2


def test_models_that_do_not_take_their_weights_are_noticed(
    make_proof: Callable[..., Any], task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_proof(epochs=4)
    monkeypatch.setattr(accuracy, "MANY", 3)

    class Deaf(nn.Sequential):
        def state_dict(self, *arguments: Any, **options: Any) -> Any:
            return {k: v.clone() for k, v in super().state_dict(*arguments, **options).items()}

    there = type(task)(lambda: Deaf(*task.build_model()).cuda())
    verdict = polo.verify(made.path, trust=made.issuer.public_key, task=there)
    assert [check.shard for check in verdict.of(Status.FAILED)] == [4, 3, 2, 1]


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("staged", [False, True])
def test_a_loader_puts_the_same_weights_there(form: torch.memory_format, staged: bool) -> None:
    def built(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(7, 5).double())

    there = built(0).cuda().to(memory_format=form)
    loader = Loader(there, staged=staged)
    for seed in (1, 2):
        held = HeldCheckpoint.copy_of(checkpoint_of(built(seed)))
        loader.load(held, check=True)
        assert commit(checkpoint_of(there)).root == commit(held).root
    there[2].bias.data = there[2].weight.data[:, 0]
    with pytest.raises(NotLoadedError):
        loader.load(HeldCheckpoint.copy_of(checkpoint_of(built(3))), check=True)
