"""The laboratory's tasks keep to the interfaces that progress and replay rely on."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import polo
from polo.errors import MissingError
from polo.evidence.replay.data import DataSource
from polo.tasks import GROUP, Task
from polo.tasks.training import HeldOut, Trainable
from polo_lab.effort.catalogue import SMALL, TASKS, keys
from polo_lab.tasks import Cifar

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=sorted(TASKS))
def task(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Every task; that of CIFAR-10 with 24 made-up images, which is enough for its interface."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, seed in (("data_batch_3.bin", 1), ("test_batch.bin", 2)):
        records = np.random.default_rng(seed).integers(0, 256, (24, 3073), np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    monkeypatch.setenv("POLO_DATA", str(tmp_path))
    return TASKS[request.param].task()


def few(task: Task) -> dict[str, torch.Tensor]:
    return DataSource(task.train_columns(), bytes(32)).batch(range(8))


def test_it_is_a_task_that_can_be_trained_and_held_out(task: Task) -> None:
    assert isinstance(task, Task)
    assert isinstance(task, Trainable)
    assert isinstance(task, HeldOut)


def test_its_columns_are_those_of_its_data(task: Task) -> None:
    assert DataSource(task.train_columns(), bytes(32)).columns == task.columns


def test_its_model_carries_marks(task: Task) -> None:
    assert polo.capacity_of(task.build_model()).objection(128, 125_000) == ""


def test_a_training_step_is_one_optimizer_step_and_learns(task: Task) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    task.train_step(model, optimizer, few(task))
    assert steps == [1]
    assert model.training
    moved = zip(before, model.parameters(), strict=True)
    # A bias in front of a norm has no gradient but for rounding.
    assert all(not torch.equal(old, new) for old, new in moved if old.ndim > 1)


def test_a_training_step_depends_on_the_seed_alone(task: Task) -> None:
    ends = []
    for seed in (5, 5, 6):
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(seed)
        task.train_step(model, optimizer, few(task))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    random = any(isinstance(m, torch.nn.Dropout) for m in model.modules()) or task.name.endswith(
        "cifar"
    )
    assert torch.equal(ends[0], ends[2]) != random


def test_held_out_loss_has_a_gradient_and_leaves_the_model_as_it_was(task: Task) -> None:
    model = task.build_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss = task.held_out_loss(model)
    loss.backward()
    assert loss.dim() == 0
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_accuracy_is_a_rate_on_samples_that_training_never_sees(task: Task) -> None:
    assert 0 <= task.evaluate(task.build_model()) <= 1
    seen, held = getattr(task, "train_part", None), getattr(task, "test_part", None)
    if seen and held:
        rows = {row.numpy().tobytes() for row in seen[0]}
        assert not any(row.numpy().tobytes() in rows for row in held[0])


def test_cifar_without_its_data_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLO_DATA", raising=False)
    with pytest.raises(MissingError, match="CIFAR-10 is not here"):
        Cifar().train_columns()


def test_all_are_registered_under_their_own_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = project["entry-points"][GROUP]
    for entry in TASKS.values():
        task = entry.task()
        kind = type(task)
        assert offered[task.name] == f"polo_lab.tasks:{kind.__name__}"
        assert task.name.startswith("lab-")


def test_cases_spread_over_tasks_optimizers_and_schedules() -> None:
    kinds = {(key.task, key.optimizer, key.schedule) for key in keys(64)}
    assert len(kinds) == 64
    assert {key.task for key in keys(4)} == set(SMALL)
    assert len({key.seed for key in keys(200)}) == 200
