"""Steps that could be known without taking them: what the verifier asks of samples and numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn.functional import cross_entropy

from polo.errors import FormatError
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.distinct import duplicates
from polo.evidence.replay.samples import check_opening
from polo.verifier import Outcome, Status


class Variant:
    """The tiny task with another training step."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class Faint(Variant):
    """Gradients that differ from sample to sample, and are too small to move a weight."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        model.train()
        optimizer.zero_grad()
        (1e-25 * cross_entropy(model(batch["point"]), batch["label"])).backward()
        optimizer.step()


class Tidying(Variant):
    """Gradients are cleared after the step, as many loops do."""

    def train_step(self, model: Any, optimizer: Any, batch: Any) -> None:
        model.train()
        cross_entropy(model(batch["point"]), batch["label"]).backward()
        optimizer.step()
        optimizer.zero_grad()


def plain_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )


def effect(verdict: Any) -> Any:
    (found,) = (check for check in verdict.checks if check.name == "effect")
    return found


@pytest.mark.parametrize("tolerance", [0, 20_000])
def test_samples_that_move_nothing_are_no_effort(
    tolerance: int,
    task: Any,
    train: Callable[..., Any],
    recipe_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    # Without a weight that is zero: to such a one the smallest gradient is a move.
    faint = Faint(type(task)(plain_model))
    recipe = recipe_of(momentum=0.0, tolerance=tolerance)
    made = train(tmp_path / "proof", task=faint, recipe=recipe)
    verdict = made.replayed(tmp_path / "answer")
    assert verdict.outcome is Outcome.REJECTED
    assert (effect(verdict).status, effect(verdict).figures["changed"]) == (Status.FAILED, 0)


@pytest.mark.parametrize("tolerance", [0, 20_000])
def test_samples_that_teach_change_their_step(
    tolerance: int, train: Callable[..., Any], recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", recipe=recipe_of(momentum=0.0, tolerance=tolerance))
    verdict = made.replayed(tmp_path / "answer")
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert effect(verdict).figures["changed"] == 1


def test_a_loop_that_clears_its_gradients_late_is_replayed(
    task: Any, train: Callable[..., Any], tmp_path: Path
) -> None:
    made = train(tmp_path / "proof", task=Tidying(task))
    assert made.replayed(tmp_path / "answer").outcome is Outcome.ACCEPTED


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    points = np.zeros((4, 3), dtype=np.float32)
    points[2, 1] = value
    source = DataSource({"point": points}, secret=bytes(32))
    indices = np.array([1, 2])
    with pytest.raises(FormatError, match="no number"):
        check_opening(source.open(indices), indices, source.root, 4, source.columns, place="it")


def test_the_two_zeros_are_one_content() -> None:
    points = np.array([[0.0], [-0.0], [1.0]], dtype=np.float32)
    opening = DataSource({"point": points}, secret=bytes(32)).open(np.arange(3))
    assert duplicates(opening.contents.values()) == 1
