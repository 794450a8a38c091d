"""Steps that a registry draws after the close, answered by `polo submit`, over the wire."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polo
from polo.cli import run
from polo.client.client import Client
from polo.client.enrolled import LiveEnrolment
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.recipe import Recipe
from polo.storage import answers
from polo.tasks.digits import Digits

pytestmark = pytest.mark.slow

TASKS = """
[digits]
shards = 3
fewest_shards = 1
bits = 128
strength = 0.02
history = "all"
answer_within = 600
recipe = { batch = 64, every = 8, draws = 2, top = 1, seals = 1 }
"""


@pytest.fixture
def submitted(
    serve: Callable[..., Any],
    alice: polo.Identity,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> Callable[..., int]:
    """A closed chain of one shard whose steps are drawn; hands it in, with options."""
    real = serve(TASKS)
    alice.save(tmp_path / "alice.key")
    np.savez(tmp_path / "digits.npz", **Digits().train_columns())
    assert run(["data", str(tmp_path / "digits.npz"), "--out", str(tmp_path / "data")]) == 0
    command = ["enrol", "--registry", real.url, "--task", "digits", "--name", "Alice"]
    command += ["--identity", str(tmp_path / "alice.key"), "--out", str(tmp_path / "enrolment")]
    assert run([*command, "--data", str(tmp_path / "data")]) == 0
    train(tmp_path, alice)
    assert "draws steps to run again now" in caplog.text

    def submit(*more: object) -> int:
        given = ["submit", tmp_path / "proof", "--key", tmp_path / "alice.key", "--wait", 120]
        return run([str(item) for item in (*given, *more)])

    return submit


def train(folder: Path, key: polo.Identity) -> None:
    import torch

    task, enrolment = Digits(), LiveEnrolment.load(folder / "enrolment")
    torch.manual_seed(0)
    model = task.build_model()
    source = DataSource.load(folder / "data", task.train_columns())
    recipe = Recipe.from_settings(enrolment.record.terms.evidence[-1].settings, "terms")
    optimizer = recipe.optimizer(model)
    prover = polo.Prover(enrolment, key=key, store=folder / "proof", data=source, on_outage="wait")
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for numbers in prover.sampler:
            task.train_step(model, optimizer, source.batch(numbers))
        prover.end_epoch()
    assert prover.finish(wait=60).shards == 1


def with_data(folder: Path) -> tuple[object, ...]:
    return ("--data", folder / "data", "--arrays", folder / "digits.npz")


def test_an_answer_that_holds(
    submitted: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert submitted() == 2
    assert "give --data and --arrays" in capsys.readouterr().out
    # Other arrays than those that were committed to are noticed before anything is computed.
    other = {name: column[::-1].copy() for name, column in Digits().train_columns().items()}
    np.savez(tmp_path / "other.npz", **other)
    assert submitted("--data", tmp_path / "data", "--arrays", tmp_path / "other.npz") == 2
    capsys.readouterr()
    assert submitted(*with_data(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "the replay challenge is answered" in told
    assert "the registry's verdict: accepted" in told
    assert run(["status", str(tmp_path / "proof"), "--key", str(tmp_path / "alice.key")]) == 0
    assert "challenge replay: passed" in capsys.readouterr().out
    # Without a key one sees what anybody may: the verdict, but no challenges.
    assert run(["status", str(tmp_path / "proof")]) == 0
    told = capsys.readouterr().out
    assert "the registry's verdict: accepted" in told
    assert "challenge" not in told


def test_an_answer_that_does_not_hold(
    submitted: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    honest = answers.pack

    def forged(folder: Path, challenge: Any, out: Path) -> None:
        victim = next(path for path in sorted(folder.iterdir()) if "model" in path.name)
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
        honest(folder, challenge, out)

    monkeypatch.setattr(answers, "pack", forged)
    capsys.readouterr()
    assert submitted(*with_data(tmp_path), "--json") == 1
    done = json.loads(capsys.readouterr().out)
    assert done["outcome"] == "rejected"
    assert [item["state"] for item in done["verdict"]["challenges"]] == ["failed"]
    with Client(LiveEnrolment.load(tmp_path / "enrolment").address.url) as client:
        assert client.enrolment(done["enrolment"])["state"] == "failed"
