"""Level replay by the command line: data, enrolment, challenge, answer, verdict; and mistakes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polo
from polo import cli
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.recipe import Recipe
from polo.protocol import signing
from polo.storage.folder import ProofFolder

TASK = "cloud:task"
MODULE = """
import importlib.util, sys
if "shared" not in sys.modules:
    spec = importlib.util.spec_from_file_location("shared", {path!r})
    sys.modules["shared"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["shared"])
task = sys.modules["shared"].TinyTask()
"""


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, task: Any, alice: Any, issuer: Any) -> Path:
    """A folder in which somebody has done everything up to the finished proof."""
    folder = tmp_path_factory.mktemp("desk")
    shared = Path(__file__).resolve().parents[1] / "conftest.py"
    (folder / "cloud.py").write_text(MODULE.format(path=str(shared)))
    np.savez(folder / "train.npz", **task.train_columns())
    for name, key in (("alice", alice), ("issuer", issuer)):
        key.save(folder / f"{name}.key")
        polo.keys.save_public(key.public_key, folder / f"{name}.pub")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run("data", "train.npz", "--out", "my-data") == 0
        order = ["enrol", "--task", TASK, "--identity", "alice.pub", "--issuer", "issuer.key"]
        order += ["--out", "enrolment", "--bits", 128, "--shards", 6, "--strength", 0.02]
        order += ["--start", "derived", "--data", "my-data/data.json", "--recipe", "batch=32"]
        assert run(*order, "every=3", "draws=3", "top=1", "seals=1") == 0
        train(folder, task)
        assert run("challenge", "proof", "--out", "challenge.json") == 0
        answer = ["answer", "proof", "challenge.json", "--data", "my-data", "--arrays", "train.npz"]
        assert run(*answer, "--key", "alice.key", "--task", TASK, "--out", "answer") == 0
    return folder


def train(folder: Path, task: Any) -> None:
    data = DataSource.load(folder / "my-data", task.train_columns())
    enrolment = polo.OfflineEnrolment.load(folder / "enrolment")
    recipe = Recipe.from_settings(enrolment.record.terms.evidence[1].settings, "terms")
    model = task.build_model()
    polo.draw_start(model, enrolment)
    optimizer = recipe.optimizer(model)
    prover = polo.Prover(enrolment, key=folder / "alice.key", store=folder / "proof", data=data)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(2):
            for numbers in prover.sampler:
                task.train_step(model, optimizer, data.batch(numbers))
            prover.end_epoch()
    prover.finish()


@pytest.fixture
def at_desk(
    desk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """Runs a command in that folder; its exit code and all that it says."""
    monkeypatch.chdir(desk)
    monkeypatch.setenv("POLO_TRUST", str(tmp_path / "trust"))
    monkeypatch.setenv("COLUMNS", "200")

    def make(*arguments: object) -> int:
        return run(*arguments)

    return make


VERIFY = ("verify", "proof", "--trust", "issuer.pub", "--task", TASK)


def test_the_whole_way(
    at_desk: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = (*VERIFY, "--challenge", "challenge.json", "--answer", "answer")
    assert at_desk(*order, "--report", tmp_path / "report.html") == 0
    assert "ACCEPTED" in capsys.readouterr().out
    assert "segment" in (tmp_path / "report.html").read_text()
    assert at_desk(*order, "--json", "--device", "cpu") == 0
    said = json.loads(capsys.readouterr().out)
    (draw,) = (check for check in said["checks"] if check["name"] == "draw")
    assert draw["status"] == "passed"
    assert draw["figures"]["exact"] == draw["figures"]["run"] >= 3


def test_what_challenge_and_answer_say(
    at_desk: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "drawn.json"
    assert at_desk("challenge", "proof", "--out", out, "--ends", "--device", "cpu", "--json") == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["ends"] is True
    assert json.loads(out.read_text()) == drawn
    order = ["answer", "proof", out, "--data", "my-data", "--arrays", "train.npz"]
    order += ["--key", "alice.key", "--task", TASK, "--out", tmp_path / "answer", "--json"]
    assert at_desk(*order) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == len(list((tmp_path / "answer").iterdir()))
    assert (tmp_path / "answer").stat().st_mode & 0o777 == 0o700
    assert at_desk(*VERIFY, "--challenge", out, "--answer", tmp_path / "answer") == 0


def test_drawing_too_early_and_from_too_little(
    at_desk: Callable[..., int],
    desk: Path,
    alice: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(desk / "proof", tmp_path / "open")
    manifest = ProofFolder(desk / "proof").manifest()
    still = signing.sign(replace(manifest, finished=False), alice)
    (tmp_path / "open" / "manifest.json").write_bytes(still.to_bytes())
    assert at_desk("challenge", tmp_path / "open", "--out", tmp_path / "early.json") == 0
    assert "not closed yet" in capsys.readouterr().out
    assert at_desk("export", "proof", "--as", "public", "--out", tmp_path / "p.polo") == 0
    assert at_desk("challenge", tmp_path / "p.polo", "--out", tmp_path / "x.json") == 2
    assert "without its records" in capsys.readouterr().err


def test_the_folder_or_its_record_may_be_given(at_desk: Callable[..., int], tmp_path: Path) -> None:
    """`polo enrol` takes data.json; whoever gives that to `polo answer` means the folder."""
    order = ["answer", "proof", "challenge.json", "--data", "my-data/data.json"]
    order += ["--arrays", "train.npz", "--key", "alice.key", "--task", TASK]
    assert at_desk(*order, "--out", tmp_path / "answer") == 0


def test_verdicts_on_less_than_everything(
    at_desk: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert at_desk(*VERIFY) == 2
    assert "nothing was drawn" in capsys.readouterr().out
    assert at_desk(*VERIFY, "--answer", "answer") == 2
    assert "--challenge" in capsys.readouterr().err
    assert at_desk(*VERIFY, "--challenge", "challenge.json") == 1
    assert "there is no answer" in capsys.readouterr().out
    assert at_desk(*VERIFY, "--challenge", "challenge.json", "--answer", "anwser") == 2
    assert "no answer here" in capsys.readouterr().out


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "out is there": (("challenge", "proof", "--out", "challenge.json"), "is there already"),
    "no proof": (("challenge", "prof", "--out", "x.json"), "prof"),
    "no terms": (("challenge", "plain", "--out", "x.json"), "do not ask for replay"),
    "order of arguments": (("answer", "challenge.json", "proof"), "not a plain file"),
    "no challenge": (("answer", "proof", "x.json"), "x.json"),
    "challenge that is none": (("answer", "proof", "enrolment/enrolment.json"), "enrolment.json"),
    "folder as challenge": (("answer", "proof", "my-data"), "my-data"),
    "no task": (("answer", "proof", "challenge.json", "--task", "tiny"), "tiny"),
    "other arrays": (("answer", "proof", "challenge.json", "--arrays", "other.npz"), "my-data"),
    "no arrays": (("answer", "proof", "challenge.json", "--arrays", "x.npz"), "x.npz"),
    "arrays of text": (("answer", "proof", "challenge.json", "--arrays", "cloud.py"), ".npz"),
    "no data": (("answer", "proof", "challenge.json", "--data", "enrolment"), "data.json"),
    "other key": (("answer", "proof", "challenge.json", "--key", "issuer.key"), "enrolled"),
    "public key": (("answer", "proof", "challenge.json", "--key", "alice.pub"), "alice.pub"),
    "answer is there": (("answer", "proof", "challenge.json", "--out", "answer"), "there already"),
    "no challenge to verify": ((*VERIFY, "--challenge", "x.json"), "x.json"),
    "answer for challenge": ((*VERIFY, "--challenge", "answer/answer.json"), "answer.json"),
    "no such device": (
        (*VERIFY, "--challenge", "challenge.json", "--answer", "answer", "--device", "tpu"),
        "tpu",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(
    mistake: str,
    desk: Path,
    at_desk: Callable[..., int],
    make_proof: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, message = MISTAKES[mistake]
    if mistake == "no terms":
        shutil.rmtree(desk / "plain", ignore_errors=True)
        make_proof(desk / "plain", epochs=1)
    if mistake == "other arrays":
        arrays = dict(np.load("train.npz"))
        np.savez(desk / "other.npz", **{name: values[:99] for name, values in arrays.items()})
    usual = {"--data": "my-data", "--arrays": "train.npz", "--key": "alice.key", "--task": TASK}
    usual["--out"] = str(tmp_path / "out")
    if arguments[0] == "answer":
        given = [word for pair in usual.items() if pair[0] not in arguments for word in pair]
        arguments = (*arguments, *given)
    assert at_desk(*arguments) == 2
    said = capsys.readouterr()
    assert message in said.err + said.out
    assert "Traceback" not in said.err
    assert not (tmp_path / "out").exists()


def test_changed_samples_are_named(
    at_desk: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = dict(np.load("train.npz"))
    arrays["point"] = arrays["point"] + 1
    np.savez(tmp_path / "changed.npz", **arrays)
    order = ["answer", "proof", "challenge.json", "--data", "my-data", "--key", "alice.key"]
    order += ["--task", TASK, "--out", tmp_path / "out", "--arrays", tmp_path / "changed.npz"]
    assert at_desk(*order) == 2
    said = capsys.readouterr().err
    assert "sample" in said
    assert "the data have changed" in said
    assert not (tmp_path / "out").exists()
