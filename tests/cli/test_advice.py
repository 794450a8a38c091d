"""`polo validate`: its advice, and what forging costs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from polo import cli
from polo.cli.advice import trained
from polo.errors import WeightsError


def run(*words: object) -> int:
    return cli.run([str(word) for word in words])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model of the digits task."""
    from polo.tasks.digits import Digits

    torch.manual_seed(0)
    task = Digits()
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    task.train_epoch(model, optimizer)
    path = tmp_path_factory.mktemp("models") / "digits.safetensors"
    save_file(model.state_dict(), path)
    return path


def test_it_advises_scheme_size_and_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--task", "digits") == 0
    said = capsys.readouterr().out
    assert "advice: scheme ednn, 512 bits at a load of 0.125, blocks of 256" in " ".join(
        said.split()
    )
    assert "forging" not in said, "an untrained model says nothing about it"


def test_forging_a_trained_model_is_measured(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("validate", "--task", "digits", "--model", digits) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "measured: 0." in said
    assert "forging costs this model nothing: ask for replay" in said
    assert run("validate", "--task", "digits", "--model", digits, "--json") == 0
    found = json.loads(capsys.readouterr().out)["forging"]
    assert found["costs_nothing"]
    assert found["all_bits"]["eta"] == 1
    assert found["enough_bits"]["edit"] < found["all_bits"]["edit"]
    assert abs(found["enough_bits"]["metric"] - found["metric_before"]) < 0.005


def test_a_file_alone_tells_how_far_a_forger_moves_it(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("validate", digits) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "moves the marked weights by" in said
    assert "polo validate --task TASK --model FILE" in said
    assert run("validate", digits, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forging"]["costs_nothing"] is None
    assert found["advised"]["scheme"] == "ednn"


def test_what_does_not_fit_is_still_advised_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"a.weight": torch.zeros(40, 256)}, tmp_path / "small.safetensors")
    assert run("validate", tmp_path / "small.safetensors", "--bits", "8192", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["forging"] is None
    assert found["advised"]["bits"] < 8192


@pytest.mark.parametrize("fault", ["no task", "another model", "no file"])
def test_mistakes_are_told(
    fault: str, digits: Path, tmp_path: Path, task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.safetensors"
    save_file(task.build_model().state_dict(), other)
    words = {
        "no task": (other, "--model", digits),
        "another model": ("--task", "digits", "--model", other),
        "no file": ("--task", "digits", "--model", tmp_path / "absent.safetensors"),
    }[fault]
    assert run("validate", *words) == 2
    assert capsys.readouterr().err


def test_a_model_with_tied_weights_is_loaded(tmp_path: Path) -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model[1].weight = model[0].weight
        return model

    task, model = SimpleNamespace(name="tied", build_model=build), build()
    state = model.state_dict()
    for name, tensors in {
        "all": state,
        "once": {k: state[k] for k in state if k != "1.weight"},
    }.items():
        save_file({key: value.clone() for key, value in tensors.items()}, tmp_path / name)
        found = trained(task, tmp_path / name)
        assert all(torch.equal(value, state[key]) for key, value in found.state_dict().items())
    save_file({"0.weight": torch.zeros(64, 64)}, tmp_path / "part")
    with pytest.raises(WeightsError, match=r"0\.bias: is not of a model of the task 'tied'"):
        trained(task, tmp_path / "part")


@pytest.mark.parametrize("scheme", ["ednn", "signed"])
@pytest.mark.parametrize("value", [torch.nan, 3e38, 1e308])
def test_weights_of_no_model_are_refused(
    value: float, scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.safetensors"
    save_file({"a.weight": torch.full((400, 256), value, dtype=torch.float64)}, path)
    assert run("validate", path, "--scheme", scheme) == 2
    said = capsys.readouterr().err
    assert "not finite" in said or "too large" in said
    assert "report it" not in said


def test_an_empty_model_can_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "zeros.safetensors"
    save_file({"a.weight": torch.zeros(400, 256)}, path)
    assert run("validate", path, "--json") == 0
    assert not json.loads(capsys.readouterr().out)["forging"]["all_bits"]["accepted"]
