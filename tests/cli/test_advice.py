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
from polo.cli.subject import trained
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
    said = " ".join(capsys.readouterr().out.split())
    assert "advice: scheme ednn, 512 bits at a load of 0.125, blocks of 256" in said
    assert "polo enrol … --scheme ednn --bits 512 --load 0.125 --block 256" in said


def test_an_untrained_model_says_nothing_about_forging(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--task", "digits") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "moves the marked weights" not in said
    assert "untrained; give a trained one: polo validate --task digits --model FILE" in said
    assert run("validate", "--task", "digits", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forging"] is found["advised"]["forging"] is None
    assert "untrained" in found["forging_unknown"]


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


def test_forging_is_measured_for_what_is_advised_too(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = ("validate", "--task", "digits", "--model", digits)
    assert run(*order, "--scheme", "signed", "--bits", "256", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forging_unknown"] == ""
    planned, advised = found["forging"], found["advised"]["forging"]
    assert planned["metric_before"] == advised["metric_before"]
    assert planned["all_bits"] != advised["all_bits"]
    assert run(*order, "--bits", "512", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    # What is planned here is what is advised.
    assert found["forging"] == found["advised"]["forging"] == advised
    assert run(*order, "--bits", "512") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("moves the marked weights by") == 1
    assert "one mark as planned and as advised" in said


def test_a_file_alone_tells_how_far_a_forger_moves_it(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("validate", digits) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "moves the marked weights by" in said
    assert "a file alone does not say what the model is for" in said
    assert "polo validate --task TASK --model" in said
    assert run("validate", digits, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advised"]["forging"]["costs_nothing"] is None
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
    assert found["advised"]["forging"]["all_bits"]["edit"] >= 0


def test_without_torch_a_file_is_still_looked_at(digits: Path, in_child: Any) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from polo import cli\n"
        "assert cli.run(['validate', sys.argv[1]]) == 0"
    )
    said = " ".join(in_child(code, digits, bare=True).stdout.split())
    assert "256 bits fit" in said
    assert "needs torch: pip install 'polo-proof[torch]'" in said


def test_adapters_are_planned_as_they_are_enrolled_and_small_blocks_advised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"layers.{at}.q_proj.lora_{side}.weight" for at in range(8) for side in "AB"]
    save_file({name: torch.randn(8, 128) for name in names}, tmp_path / "adapter.safetensors")
    assert run("validate", tmp_path / "adapter.safetensors", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {item["blocks"] for item in found["tensors"]} == {8 * 128 // 256}
    assert (found["advised"]["scheme"], found["advised"]["block"]) == ("ednn", 64)
    order = ("validate", tmp_path / "adapter.safetensors", "--block", "64", "--json")
    assert run(*order) == 0
    found = json.loads(capsys.readouterr().out)
    assert {item["blocks"] for item in found["tensors"]} == {8 * 128 // 64}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no task", "polo validate --task TASK --model"),
        ("two files", "polo validate --task TASK --model"),
        ("another model", "Give the task that it was trained for"),
        ("no file", "there is no such file"),
        ("a task for a file", "what to do: polo validate --task digits\n"),
        ("a folder", "Give the model as one safetensors file"),
        ("few shards", "the task's floor has 5 steps"),
    ],
)
def test_mistakes_are_told(
    fault: str,
    words: str,
    digits: Path,
    tmp_path: Path,
    task: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other.safetensors"
    save_file(task.build_model().state_dict(), other)
    order = {
        "no task": ("--model", digits),
        "two files": (other, "--model", digits),
        "another model": ("--task", "digits", "--model", other),
        "no file": ("--task", "digits", "--model", tmp_path / "absent.safetensors"),
        "a task for a file": ("digits",),
        "a folder": (tmp_path,),
        "few shards": ("--task", "digits", "--shards", "3"),
    }[fault]
    assert run("validate", *order) == 2
    assert words in capsys.readouterr().err


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


class Moody:
    """A task of one's own with a mistake in it."""

    name, version, metric, floor = "moody", 1, "accuracy", (0.1,)

    def build_model(self) -> nn.Module:
        raise KeyError("width")

    def evaluate(self, model: nn.Module) -> float:
        raise ZeroDivisionError("no test digits")


class Sullen(Moody):
    """One that cannot test its model."""

    def build_model(self) -> nn.Module:
        from polo.tasks.digits import Digits

        return Digits().build_model()


def test_a_task_that_fails_is_blamed_and_not_polo(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "polo.cli.subject.load_task", lambda name: {"a": Moody, "b": Sullen}[name]()
    )
    assert run("validate", "--task", "a") == 2
    told = capsys.readouterr().err
    assert "the task 'moody' fails in build_model(): KeyError: 'width'" in told
    assert run("validate", "--task", "b", "--model", digits) == 2
    told += capsys.readouterr().err
    assert "fails in evaluate(): ZeroDivisionError: no test digits" in told
    assert "report it" not in told


def test_pickled_weights_are_not_opened_and_the_way_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(nn.Linear(4, 4).state_dict(), tmp_path / "m.pt")
    assert run("validate", tmp_path / "m.pt") == 2
    told = capsys.readouterr().err
    assert "pickled models are not opened" in told
    assert "save_file" in told


def test_too_many_shards_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--task", "digits", "--shards", "1000000000") == 2
    assert "--shards 1000000000 is too many" in capsys.readouterr().err


def test_norm_scales_are_advised_by_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    order = ("--task", "lab-cifar10-resnet18", "--scheme", "fedipr", "--bits", "1024")
    assert run("validate", *order) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on ResNet-18 several points" in said
    assert "polo enrol --budget 0.2" in said
