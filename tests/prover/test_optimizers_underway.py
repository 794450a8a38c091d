"""Optimizers that do not step, or that nobody watches: each is told, and no shard is harmed.

As in `test_changes_underway`, the store must hold both shards of a run then, go on and verify.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_script import Enrol, Run

import polo
from polo.errors import ChainError
from polo.prover import EmbeddingWarning


def test_an_epoch_without_a_step_is_told_and_two_are_refused(run: Run) -> None:
    with pytest.warns(EmbeddingWarning, match="has made no step in this epoch") as told:
        assert run.prover.end_epoch().sealed is None
    assert told[0].filename == __file__
    with pytest.raises(ChainError, match="no step in two epochs") as caught:
        run.prover.end_epoch()
    assert "GradScaler" in caught.value.advice


def test_steps_after_an_idle_epoch_make_it_good(run: Run) -> None:
    with pytest.warns(EmbeddingWarning):
        run.prover.end_epoch()
    assert run.epoch().sealed
    with pytest.warns(EmbeddingWarning):
        run.prover.end_epoch()


@pytest.mark.parametrize("how", ["made anew", "copied", "fused"])
def test_training_with_another_optimizer_is_told_at_once(run: Run, how: str) -> None:
    if how == "copied":
        model, optimizer = copy.deepcopy((run.model, run.optimizer))
        run.task.train_epoch(model, optimizer)
        run.model.load_state_dict(model.state_dict())
    else:
        options: dict[str, Any] = {"fused": True} if how == "fused" else {}
        other = torch.optim.AdamW(run.model.parameters(), lr=0.01, **options)
        run.task.train_epoch(run.model, other)
    with pytest.raises(ChainError, match="attached has made no step") as caught:
        run.prover.end_epoch()
    assert "prover.attach(model, optimizer)" in caught.value.advice


def test_who_only_checks_is_told_of_another_optimizer(run: Run) -> None:
    assert run.prover.check().sealed is None
    other = torch.optim.AdamW(run.model.parameters(), lr=0.01)
    run.task.train_epoch(run.model, other)
    with pytest.raises(ChainError, match="attached has made no step"):
        run.prover.check()


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_optimizer_made_anew_within_a_shard_is_told(run: Run, wrapped: bool) -> None:
    run.task.train_step(run.model, run.optimizer, _batches(run)[0])
    other: Any = torch.optim.AdamW(run.model.parameters(), lr=0.01)
    other = _Wrapper(other, often=1) if wrapped else other
    run.task.train_epoch(run.model, other)
    with pytest.raises(ChainError, match=r"another optimizer \(AdamW\)") as caught:
        run.prover.end_epoch()
    assert "Attach the optimizer whose step() you call" in caught.value.advice
    # Nor is it made good by attaching it now: what it did so far is in the weights.
    with pytest.raises(ChainError, match=r"another optimizer \(AdamW\)"):
        run.prover.attach(run.model, other)


@pytest.mark.parametrize("often", [1, 3])
def test_a_wrapper_that_steps_the_attached_optimizer_is_no_other(run: Run, often: int) -> None:
    wrapper = _Wrapper(run.optimizer, often=often)
    for _ in range(3):
        run.task.train_epoch(run.model, wrapper)
    assert run.prover.end_epoch().sealed


def test_an_optimizer_of_something_else_is_no_other(run: Run) -> None:
    critic = nn.Linear(2, 1)
    own = torch.optim.SGD(critic.parameters(), lr=0.1)
    for batch in _batches(run):
        run.task.train_step(run.model, run.optimizer, batch)
        critic(torch.ones(2)).sum().backward()
        own.step()
    assert run.prover.end_epoch().sealed


def test_who_lets_go_of_an_optimizer_frees_it(run: Run) -> None:
    from torch.optim import optimizer as shared

    assert run.epoch().sealed
    hooks = len(shared._global_optimizer_post_hooks)
    run.prover.detach()
    assert len(shared._global_optimizer_post_hooks) == hooks - 1
    run.attach()


def _batches(run: Run) -> list[dict[str, torch.Tensor]]:
    return [{"label": labels, "point": points} for points, labels in run.task.batches()]


class _Wrapper(torch.optim.Optimizer):
    """Another optimizer's parameters, and a step of it every so often."""

    def __init__(self, wrapped: torch.optim.Optimizer, *, often: int) -> None:
        super().__init__([{"params": group["params"]} for group in wrapped.param_groups], {})
        self._wrapped, self._often, self._asked = wrapped, often, 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._asked += 1
        if self._asked % self._often == 0:
            self._wrapped.step(closure)


@pytest.mark.parametrize("block", ["open", "ended"])
def test_finish_tells_of_an_optimizer_that_never_stepped(loose: Run, block: str) -> None:
    other = torch.optim.AdamW(loose.model.parameters(), lr=0.01)
    loose.task.train_epoch(loose.model, other)
    if block == "ended":
        loose.prover.detach()
    with pytest.raises(ChainError, match="attached has made no step"):
        loose.prover.finish()
    assert loose.prover.finish(seal=False).shards == 0


def test_a_run_without_any_step_is_finished_as_it_is(loose: Run) -> None:
    loose.model.half()
    assert loose.prover.finish().shards == 0


def test_an_epoch_without_any_step_is_no_run(loose: Run) -> None:
    with pytest.warns(EmbeddingWarning, match="no step in this epoch"):
        loose.prover.end_epoch()
    with pytest.raises(ChainError, match="no step in any epoch") as caught:
        loose.prover.finish()
    assert caught.value.advice
    loose.task.train_epoch(loose.model, loose.optimizer)
    loose.prover.end_epoch()
    assert loose.prover.finish().shards == 1


def test_a_scaler_that_skips_every_step_is_told(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for epoch in range(2):
        for points, labels in run.task.batches():
            run.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run.model(points), labels)
            scaler.scale(loss * float("nan")).backward()
            scaler.step(run.optimizer)
            scaler.update()
        if epoch:
            with pytest.raises(ChainError, match="no step in two epochs"):
                run.prover.end_epoch()
        else:
            with pytest.warns(EmbeddingWarning, match="GradScaler skips every step"):
                run.prover.end_epoch()


def test_an_epoch_can_be_ended_again_after_its_sealing_failed(loose: Run) -> None:
    loose.task.train_epoch(loose.model, loose.optimizer)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            loose.prover.end_epoch(evaluate=lambda: 1 / 0)
    assert loose.prover.end_epoch(evaluate=lambda: 0.5).sealed


def test_end_epoch_before_attach(
    enrol: Enrol, alice: polo.Identity, task: Any, tmp_path: Path
) -> None:
    prover = polo.Prover(enrol(), key=alice, store=tmp_path / "proof")
    with pytest.raises(ChainError, match="before attach"):
        prover.end_epoch()
    prover.close()
