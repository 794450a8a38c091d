"""What a prover, a thief or a bad disk tries on a verifier."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polo
from polo.protocol import canonical, signing
from polo.protocol.records import File
from polo.storage.folder import MANIFEST_FILE, checkpoint_path
from polo.verifier import Outcome, Policy, Status, delivered, hashers
from polo.weights.loading import Loader

UNTESTED = Policy("none")


def sign(proof: Path, key: polo.Identity, manifest: Any) -> None:
    (proof / MANIFEST_FILE).write_bytes(signing.sign(manifest, key).to_bytes())


def test_a_chain_cut_short_of_what_the_terms_ask(
    make_proof: Callable[..., Any], alice: polo.Identity
) -> None:
    made = make_proof(epochs=4, terms={"fewest_shards": 3})
    kept = made.manifest.shards[:2]
    files = tuple(
        file
        for file in made.manifest.files
        if "/" not in file.path or int(Path(file.path).name[:6]) <= 2
    )
    for file in made.manifest.files:
        if file not in files:
            (made.path / file.path).unlink()
    sign(made.path, alice, replace(made.manifest, shards=kept, files=files))
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    (failed,) = verdict.of(Status.FAILED)
    assert failed.name == "limits"
    assert "3 to" in failed.detail


def test_a_huge_sparse_file_costs_no_time(
    make_proof: Callable[..., Any], alice: polo.Identity
) -> None:
    made = make_proof()
    name = checkpoint_path(1)
    os.truncate(made.path / name, 2**40)
    lie = File(name, 2**40, bytes(32))
    files = tuple(lie if file.path == name else file for file in made.manifest.files)
    sign(made.path, alice, replace(made.manifest, files=files))
    began = time.monotonic()
    verdict = made.verify(policy=UNTESTED)
    assert time.monotonic() - began < 20
    assert verdict.outcome is Outcome.REJECTED
    assert next(verdict.of(Status.FAILED)).place == name


def test_a_file_that_changes_between_two_reads(
    make_proof: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights that are tested are the weights that were hashed."""
    made = make_proof()
    last = made.path / checkpoint_path(made.proof.shards)
    honest, other = last.read_bytes(), (made.path / checkpoint_path(0)).read_bytes()
    load = Loader.load

    def load_late(loader: Loader, checkpoint: Any, **options: Any) -> None:
        # Somebody who can write to the folder does so after the root was read.
        last.write_bytes(other)
        load(loader, checkpoint, **options)

    monkeypatch.setattr(Loader, "load", load_late)
    assert made.verify().outcome is Outcome.ACCEPTED, "what was hashed is in memory"
    assert last.read_bytes() == other
    last.write_bytes(honest)
    monkeypatch.setattr(hashers, "MOST_HELD", 0)
    verdict = made.verify()
    assert verdict.outcome is Outcome.REJECTED
    assert any("changed while" in check.detail for check in verdict.of(Status.FAILED))


class Folded(nn.Module):
    """Two tensors, one the other's transpose; in the prover's model they are apart."""

    def __init__(self, apart: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.shown = nn.Parameter(torch.randn(64, 64) / 8)
        turned = self.shown.detach().t()
        self.used = nn.Parameter(turned.contiguous() if apart else turned)
        self.last = nn.Linear(64, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        hidden = torch.relu(self.first(points)) @ self.used
        return self.last(torch.relu(hidden)) + 0 * self.shown.sum()


class Copied(nn.Sequential):
    """A model whose state dict hands out copies, as hooks that cast or offload do."""

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Copies."""
        return {k: v.clone() for k, v in super().state_dict(*arguments, **options).items()}


@pytest.mark.parametrize("most", [0, hashers.MOST_HELD])
@pytest.mark.parametrize("folded", [True, False])
def test_weights_that_the_model_does_not_take_are_not_tested(
    make_proof: Callable[..., Any],
    task: Any,
    folded: bool,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever was loaded and is not there afterwards, something else would be tested."""
    kind, tiny = type(task), task.build_model
    made = make_proof(task=kind(lambda: Folded(apart=True)) if folded else task)
    assert made.verify().outcome is Outcome.ACCEPTED
    monkeypatch.setattr(hashers, "MOST_HELD", most)
    other = kind(Folded if folded else lambda: Copied(*tiny()))
    verdict = polo.verify(made.path, trust=made.issuer.public_key, task=other)
    assert verdict.outcome is Outcome.REJECTED
    assert {check.detail for check in verdict.of(Status.FAILED)} == {
        "the model does not hold what was loaded into it"
    }


@pytest.mark.parametrize("most", [0, hashers.MOST_HELD])
def test_a_checkpoint_that_changes_before_it_is_compared(
    make_proof: Callable[..., Any], most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A delivered file is compared with what was hashed, whatever lies there later."""
    made = make_proof()
    last, stranger = made.path / checkpoint_path(3), tmp_path / "delivered.safetensors"
    stranger.write_bytes((made.path / checkpoint_path(0)).read_bytes())
    compare = delivered.compare

    def compare_late(path: Path, checkpoint: Any) -> Any:
        last.write_bytes(stranger.read_bytes())
        return compare(path, checkpoint)

    monkeypatch.setattr(delivered, "compare", compare_late)
    monkeypatch.setattr(hashers, "MOST_HELD", most)
    verdict = made.verify(model=stranger)
    assert verdict.outcome is Outcome.REJECTED
    assert [check.name for check in verdict.of(Status.FAILED)] == ["delivered"]


def test_nothing_is_compared_with_a_checkpoint_that_is_not_the_chains(
    make_proof: Callable[..., Any], alice: polo.Identity
) -> None:
    made = make_proof()
    name, other = checkpoint_path(3), (made.path / checkpoint_path(0)).read_bytes()
    (made.path / name).write_bytes(other)
    lie = File(name, len(other), hashlib.sha256(other).digest())
    files = tuple(lie if file.path == name else file for file in made.manifest.files)
    sign(made.path, alice, replace(made.manifest, files=files))
    verdict = made.verify(model=made.path / name)
    assert verdict.outcome is Outcome.REJECTED
    [undecided] = [check for check in verdict.checks if check.name == "delivered"]
    assert undecided.status is Status.UNDECIDED


def test_files_behind_a_linked_folder_are_not_read(
    make_proof: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_proof()
    (made.path / "checkpoints").rename(tmp_path / "elsewhere")
    (made.path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert not any(
        check.status is Status.PASSED for check in verdict.checks if check.name == "root"
    )


def test_many_strange_files_make_a_short_verdict(make_proof: Callable[..., Any]) -> None:
    made = make_proof()
    for number in range(400):
        (made.path / f"stray-{number}").touch()
    verdict = made.verify(policy=UNTESTED)
    assert verdict.outcome is Outcome.REJECTED
    assert len(verdict.checks) < 250


def test_a_document_of_a_million_little_lists_is_refused_at_once() -> None:
    document = b"[" + b"[]," * 1_500_000 + b"[]]"
    began = time.monotonic()
    with pytest.raises(polo.errors.LimitError):
        canonical.parse(document, place="test")
    assert time.monotonic() - began < 1


def test_nothing_in_the_current_folder_is_imported(
    make_proof: Callable[..., Any], tmp_path: Path
) -> None:
    """A proof may bring modules named like packages that are not installed."""
    made = make_proof()
    issuer = tmp_path / "issuer.pub"
    polo.keys.save_public(made.issuer.public_key, issuer)
    witness = tmp_path / "ran"
    for name in ("pynvml", "dill", "opt_einsum", "tqdm", "zstandard_backend"):
        (made.path / f"{name}.py").write_text(f"open({str(witness)!r}, 'w')\n")
    for program in ([str(Path(sys.executable).with_name("polo"))], [sys.executable, "-m", "polo"]):
        done = subprocess.run(
            [*program, "verify", ".", "--task", "digits", "--trust", str(issuer)],
            cwd=made.path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (1, 2), done.stdout + done.stderr
        assert not witness.exists()


def test_a_task_of_the_current_folder_can_be_named(
    make_proof: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_proof()
    issuer = tmp_path / "issuer.pub"
    polo.keys.save_public(made.issuer.public_key, issuer)
    here = Path(__file__).parents[1] / "conftest.py"
    (tmp_path / "mine.py").write_text(here.read_text())
    done = subprocess.run(
        [str(Path(sys.executable).with_name("polo")), "verify", str(made.path), "--task",
         "mine:TinyTask", "--trust", str(issuer), "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["outcome"] == "accepted"


def test_a_reader_that_goes_away_is_no_verdict(
    make_proof: Callable[..., Any], tmp_path: Path
) -> None:
    made = make_proof()
    issuer = tmp_path / "issuer.pub"
    polo.keys.save_public(made.issuer.public_key, issuer)
    command = f"{sys.executable} -m polo verify {made.path} --trust {issuer} --accuracy none"
    script = f"{command} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "141"), done.stderr


@pytest.mark.parametrize("measured", [torch.tensor(0.9), np.float32(0.9)])
def test_a_metric_of_another_number_type(make_proof: Callable[..., Any], measured: Any) -> None:
    from polo.verifier.report import render

    made = make_proof()
    made.task.__dict__["evaluate"] = lambda model: measured
    try:
        verdict = made.verify(policy=Policy(tolerance=1.0))
    finally:
        del made.task.__dict__["evaluate"]
    assert verdict.outcome is Outcome.ACCEPTED
    json.dumps(verdict.to_json())
    assert render(verdict)


def test_a_file_name_in_no_encoding(make_proof: Callable[..., Any], tmp_path: Path) -> None:
    made = make_proof()
    (made.path / os.fsdecode(b"odd-\xff\x1b[2J")).touch()
    issuer = tmp_path / "issuer.pub"
    polo.keys.save_public(made.issuer.public_key, issuer)
    for coding in ("utf-8:strict", "ascii"):
        done = subprocess.run(
            [sys.executable, "-m", "polo", "verify", str(made.path), "--trust", str(issuer),
             "--accuracy", "none", "--json"],
            env={**os.environ, "PYTHONIOENCODING": coding}, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["outcome"] == "rejected"
        assert b"\x1b" not in done.stdout
