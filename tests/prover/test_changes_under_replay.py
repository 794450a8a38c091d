"""Under replay every step is fixed: what would make a shard impossible to run again is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polo
from polo.errors import ChainError, TermsError

Enrol = Callable[..., polo.OfflineEnrolment]
EASY = {"budget": 1.0, "strength": 0.05}


@pytest.fixture
def replayed(task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path) -> Any:
    source = polo.DataSource(task.train_columns(), secret=bytes(32))
    recipe = polo.Recipe(samples=256, batch=32, every=4)
    enrolment = enrol(replay=recipe, data=source.root, start="derived", **EASY)

    class Replayed:
        def __init__(self) -> None:
            self.task, self.source = task, source
            self.prover = polo.Prover(enrolment, key=alice, store=tmp_path / "p", data=source)
            self.model = task.build_model()
            if not self.prover.shards:
                polo.draw_start(self.model, enrolment)
            self.optimizer = self.prover.recipe.optimizer(self.model)

        def epoch(self) -> Any:
            for numbers in self.prover.sampler:
                task.train_step(self.model, self.optimizer, source.batch(numbers))
            return self.prover.end_epoch()

    run = Replayed()
    run.prover.attach(run.model, run.optimizer)
    assert run.epoch().sealed
    yield run
    run.prover.close()
    following = Replayed()
    with following.prover.attach(following.model, following.optimizer):
        done = following.prover.shards
        assert following.epoch().sealed
    assert following.prover.finish().shards == done + 1


@pytest.mark.parametrize("change", ["frozen", "added to the optimizer", "other momentum"])
def test_under_replay_whatever_the_verifier_would_do_otherwise_is_told(
    replayed: Any, change: str
) -> None:
    if change == "frozen":  # It carries no mark, and still the verifier would train it.
        replayed.model[0].bias.requires_grad_(False)
    elif change == "added to the optimizer":
        replayed.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    else:
        replayed.optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(TermsError, match="not the one of the terms") as caught:
        replayed.optimizer.step()
    assert "prover.recipe.optimizer(model)" in caught.value.advice


def test_accumulation_under_replay_is_told_after_the_first_epoch(replayed: Any) -> None:
    for at, numbers in enumerate(replayed.prover.sampler):
        batch = replayed.source.batch(numbers)
        loss = nn.functional.cross_entropy(replayed.model(batch["point"]), batch["label"])
        loss.backward()
        if at % 2:
            replayed.optimizer.step()
            replayed.optimizer.zero_grad()
    with pytest.raises(ChainError, match="4 batches of this epoch had no step") as error:
        replayed.prover.end_epoch()
    assert "accumulate" in error.value.advice
    assert replayed.prover.shards == 1


def test_a_step_that_a_scaler_skips_under_replay_is_told(replayed: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for at, numbers in enumerate(replayed.prover.sampler):
        batch = replayed.source.batch(numbers)
        replayed.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replayed.model(batch["point"]), batch["label"])
        scaler.scale(loss * (float("inf") if at == 3 else 1.0)).backward()
        scaler.step(replayed.optimizer)
        scaler.update()
    with pytest.raises(ChainError, match="1 batches of this epoch had no step") as error:
        replayed.prover.end_epoch()
    assert "GradScaler" in error.value.advice


def test_a_scaler_among_what_is_saved_is_refused_under_replay(replayed: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(TermsError, match="scaler: replay knows no state beside") as caught:
        replayed.prover.attach(replayed.model, replayed.optimizer, also={"scaler": scaler})
    assert "schedulers and scalers" in caught.value.advice


def test_a_fused_optimizer_is_refused_under_replay(replayed: Any) -> None:
    other = torch.optim.SGD(replayed.model.parameters(), lr=0.05, momentum=0.9, fused=True)
    with pytest.raises(TermsError, match="fused: True, where the terms say None"):
        replayed.prover.attach(replayed.model, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_runs_ahead_passes_nothing_over(replayed: Any, workers: int) -> None:
    class Points(torch.utils.data.Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return {name: value[index] for name, value in columns.items()}

    columns = replayed.task.train_columns()
    loader = torch.utils.data.DataLoader(
        Points(), batch_sampler=replayed.prover.sampler, num_workers=workers
    )
    for batch in loader:
        replayed.task.train_step(replayed.model, replayed.optimizer, batch)
    progress = replayed.prover.end_epoch()
    assert progress is not None
    assert progress.sealed


def test_batches_left_at_the_end_of_an_epoch_do_no_harm(replayed: Any) -> None:
    for at, numbers in enumerate(replayed.prover.sampler):
        if at < 6:
            batch = replayed.source.batch(numbers)
            replayed.task.train_step(replayed.model, replayed.optimizer, batch)
    progress = replayed.prover.end_epoch()
    assert progress is not None
    assert progress.sealed is None  # The terms ask for a whole pass.
