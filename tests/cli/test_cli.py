"""The command line as people use it, mistakes included."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import polo
from polo import cli


@pytest.fixture(autouse=True)
def own_trust_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLO_TRUST", str(tmp_path / "trust"))


@pytest.fixture
def issuer_file(tmp_path: Path, issuer: polo.Identity) -> Path:
    path = tmp_path / "issuer.pub"
    polo.keys.save_public(issuer.public_key, path)
    return path


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def test_help_is_quick_to_load_and_names_every_command() -> None:
    code = (
        "import sys\nfrom polo import cli\ncli.run(['--help'])\n"
        "assert not {'numpy', 'torch'} & set(sys.modules), 'too much was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("quickstart", "keygen", "trust", "enrol", "validate", "verify", "show"):
        assert command in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == polo.__version__


@pytest.mark.parametrize(
    "mistake",
    [
        ("nonsense",),
        ("verify",),
        ("verify", "no/such/proof"),
        ("verify", "x", "--accuracy", "some"),
        ("show", "no/such/proof"),
        ("keygen",),
        ("trust", "add", "../evil", "no.pub"),
        ("enrol", "--task", "digits"),
        ("validate",),
        ("validate", "no-such-file"),
        ("validate", "--task", "no-such-task"),
        ("validate", "--task", "os:path"),
    ],
    ids=" ".join,
)
def test_mistakes_exit_with_2_and_say_why(
    mistake: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*mistake) == 2
    output = capsys.readouterr()
    assert output.err or "COULD NOT DECIDE" in output.out
    assert "Traceback" not in output.err + output.out


def test_keys_and_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keygen", tmp_path / "alice") == 0
    assert (tmp_path / "alice.key").stat().st_mode & 0o777 == 0o600
    assert run("keygen", tmp_path / "alice") == 2, "a key is never overwritten"
    assert run("trust", "add", "market", tmp_path / "alice.pub") == 0
    assert run("trust", "add", "private", tmp_path / "alice.key") == 2
    capsys.readouterr()
    assert run("trust", "list", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["market"]
    assert run("trust", "remove", "market") == 0
    assert run("trust", "remove", "market") == 2


def test_a_passphrase_is_needed_to_use_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLO_PASSPHRASE", "correct horse")
    assert run("keygen", tmp_path / "issuer", "--passphrase") == 0
    monkeypatch.delenv("POLO_PASSPHRASE")
    assert b"ENCRYPTED" in (tmp_path / "issuer.key").read_bytes()
    assert run("keygen", tmp_path / "alice") == 0
    order = ["enrol", "--task", "digits", "--identity", tmp_path / "alice.pub"]
    order += ["--issuer", tmp_path / "issuer.key", "--out", tmp_path / "enrolment"]
    assert run(*order) == 2
    assert "POLO_PASSPHRASE" in capsys.readouterr().err
    monkeypatch.setenv("POLO_PASSPHRASE", "correct horse")
    assert run(*order, "--passphrase") == 0
    assert (tmp_path / "enrolment" / "nonces.json").stat().st_mode & 0o777 == 0o600
    enrolment = polo.OfflineEnrolment.load(tmp_path / "enrolment")
    assert enrolment.record.terms.scheme.bits == 256
    assert run(*order, "--passphrase") == 2, "an enrolment is never overwritten"


def test_a_protected_key_opens_with_the_passphrase_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polo.Identity.generate().save(tmp_path / "a.key", b"correct horse")
    with pytest.raises(polo.errors.SignatureError):
        polo.Identity.load(tmp_path / "a.key")
    monkeypatch.setenv("POLO_PASSPHRASE", "correct horse")
    assert polo.Identity.load(tmp_path / "a.key").id


def test_verify_and_show(
    make_proof: Callable[..., Any], issuer_file: Path, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    made = make_proof()
    order = ["verify", made.path, "--trust", issuer_file, "--accuracy", "none"]
    assert run(*order) == 0
    assert "ACCEPTED at level chain" in capsys.readouterr().out
    assert run(*order, "--json", "--report", tmp_path / "report.html") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["outcome"], verdict["exit_code"]) == ("accepted", 0)
    assert "<html" in (tmp_path / "report.html").read_text()
    assert run("show", made.path) == 0
    assert "nothing here is checked" in capsys.readouterr().out
    assert run("show", made.path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["format"] == "polo/proof/1"


def test_without_trust_it_cannot_decide(
    make_proof: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", make_proof().path) == 2
    assert "do not trust" in " ".join(capsys.readouterr().out.split())


def test_an_unknown_task_cannot_be_decided_and_is_never_imported_from_a_proof(
    make_proof: Callable[..., Any], issuer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", make_proof().path, "--trust", issuer_file) == 2
    assert "tiny" in capsys.readouterr().out


def test_a_delivered_model(
    make_proof: Callable[..., Any], issuer_file: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import torch

    made = make_proof()
    order = ["verify", made.path, "--trust", issuer_file, "--accuracy", "none", "--model"]
    state = made.model.state_dict()
    half = {k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}
    other = {k: v.clone() for k, v in state.items()}
    other["3.weight"][0, 0] += 1e-6
    cases = {
        "exact": (state, 0, "exactly the last checkpoint"),
        "half": (half, 0, "converted from F32 to BF16"),
        "other": (other, 1, "3.weight"),
        "fewer": ({k: v for k, v in state.items() if k != "0.bias"}, 1, "0.bias"),
    }
    for name, (tensors, code, words) in cases.items():
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path)
        assert run(*order, path) == code, name
        assert words in " ".join(capsys.readouterr().out.split())
    torch.save(state, tmp_path / "model.pt")
    assert run(*order, tmp_path / "model.pt") == 2
    assert "save_file" in capsys.readouterr().out
    (tmp_path / "empty.safetensors").write_bytes(b"")
    assert run(*order, tmp_path / "empty.safetensors") == 1
    assert run(*order, tmp_path / "absent.safetensors") == 2


def test_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str], task: Any) -> None:
    assert run("validate", "--task", "digits") == 0
    assert "256 bits fit" in capsys.readouterr().out
    assert run("validate", "--task", "digits", "--bits", "100000") == 1
    assert "what to do" in capsys.readouterr().out
    save_file(task.build_model().state_dict(), tmp_path / "model.safetensors")
    assert run("validate", tmp_path / "model.safetensors", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert found["plan"]["checkpoint_bytes"] > 0
    reasons = {item["name"]: item["reason"] for item in found["tensors"]}
    assert reasons["0.weight"] == ""
    assert "cannot be nudged" in reasons["1.num_batches_tracked"]


def test_predictions_hold(make_proof: Callable[..., Any], enrol: Callable[..., Any]) -> None:
    """What `validate` predicts is what a run then takes."""
    from polo.planning import plan
    from polo.weights import checkpoint_of

    for retention in ("all", "thin"):
        made = make_proof(retention=retention)
        shutil.rmtree(made.state_path)
        terms = made.enrolment.record.terms
        planned = plan(terms, checkpoint_of(made.model).layout, shards=made.proof.shards)
        predicted = planned.all_bytes if retention == "all" else planned.thin_bytes
        actual = sum(path.stat().st_size for path in made.path.rglob("*") if path.is_file())
        assert actual == pytest.approx(predicted, rel=0.25)
        shutil.rmtree(made.path)


@pytest.mark.slow
@pytest.mark.full
def test_quickstart(tmp_path: Path) -> None:
    environment = {**os.environ, "POLO_TRUST": str(tmp_path / "trust")}
    command = [str(Path(sys.executable).with_name("polo"))]

    def polo_(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300,
            check=False, env=environment,
        )  # fmt: skip

    folder = tmp_path / "first"
    done = polo_("quickstart", "--dir", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"✓ passed", done.stdout)) >= 6, done.stdout
    assert re.search(r"REJECTED at root \(shard 4", done.stdout)
    assert re.search(r"REJECTED at order \(shard 2", done.stdout)
    assert "ACCEPTED at level chain + progress + replay" in done.stdout
    assert re.search(r"REJECTED at level replay: segment \(shard \d+, segment", done.stdout)
    assert re.search(r"REJECTED at level progress: ", done.stdout)
    alone = r"level chain alone would have ACCEPTED it, forged in \d+ ms a shard"
    assert re.search(alone, done.stdout)
    assert "polo compare: the trainer; the trainer's marks are in the thief's" in done.stdout
    named = re.search(r"CLAIM STANDS: the trainer: .*log2 p = (-[\d.]+)", done.stdout)
    assert named, done.stdout
    assert float(named[1]) <= -64
    assert re.search(r"without PoLO\n +NO CLAIM: the trainer: ", done.stdout)
    assert (folder / "report.html").stat().st_size > 10_000
    tried = re.findall(r"^ +\S*polo (.+)$", done.stdout, re.MULTILINE)
    assert len(tried) == 4
    for line in tried:
        again = polo_(*line.split())
        assert again.returncode == 0, line + again.stdout + again.stderr
    refused = polo_("quickstart", "--dir", folder)
    assert refused.returncode == 2
    assert "--force" in refused.stderr


@pytest.mark.slow
@pytest.mark.full
def test_mutations_through_the_command_line(
    make_proof: Callable[..., Any], issuer_file: Path
) -> None:
    """Forty flipped bits, each in a fresh process, as a buyer would meet them."""
    import random

    made = make_proof()
    rng = random.Random(40)
    order = [sys.executable, "-m", "polo", "verify", str(made.path), "--trust", str(issuer_file)]
    order += ["--accuracy", "none"]
    assert subprocess.run(order, capture_output=True, check=False).returncode == 0
    files = sorted(path for path in made.path.rglob("*") if path.is_file())
    for number in range(40):
        path = files[number % len(files)]
        original = path.read_bytes()
        at = rng.randrange(len(original))
        flipped = bytes([original[at] ^ 1 << rng.randrange(8)])
        path.write_bytes(original[:at] + flipped + original[at + 1 :])
        done = subprocess.run(order, capture_output=True, text=True, check=False)
        what = f"mutation {number}, byte {at} of {path.name}: {done.stdout}{done.stderr}"
        assert done.returncode == 1, what
        assert "REJECTED" in done.stdout, what
        assert "Traceback" not in done.stderr, what
        path.write_bytes(original)


SLOW = """
import time
from pathlib import Path
from torch import nn


class Tiny:
    name, version, metric, floor = "tiny", 1, "accuracy", (0.15,)

    def build_model(self):
        return nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
            nn.Linear(64, 4),
        )

    def evaluate(self, model):
        Path("begun").touch()
        time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_told_to_end_cleans_up(
    tmp_path: Path, make_proof: Callable[..., Any], issuer_file: Path, number: int
) -> None:
    """A real process, ended while the nonces of a bundle are unpacked."""
    make_proof(epochs=1)
    bundle, unpacked = tmp_path / "all.polo", tmp_path / "temporary"
    assert run("export", tmp_path / "proof", "--as", "verifier", "--to", "x", "--out", bundle) == 0
    (tmp_path / "slow_shop.py").write_text(SLOW)
    unpacked.mkdir()
    command = [sys.executable, "-m", "polo", "verify", bundle, "--trust", issuer_file]
    with subprocess.Popen(
        [*map(str, command), "--task", "slow_shop:Tiny"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(unpacked)},
        stderr=subprocess.PIPE,
        # Whoever runs the tests may have told them to ignore a hang-up.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        try:
            for _ in range(600):
                if (tmp_path / "begun").exists() or process.poll() is not None:
                    break
                time.sleep(0.1)
            assert list(unpacked.glob("polo-*/nonces/*")), "it was to be in the middle of it"
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + number, said
    assert said == b"polo: ended by a signal\n"
    assert not list(unpacked.iterdir())
