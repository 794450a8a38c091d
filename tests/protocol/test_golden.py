"""The golden proofs of format version 1 verify, here and by a reader that shares no code."""

import json
import shutil
import subprocess
import sys

import pytest

import polo
from polo.keys import load_public
from polo.protocol.layout import Layout
from polo.storage import delta
from polo.weights.files import FileCheckpoint

PROOFS = ("v1", "v1-thin")
MOST_BYTES = 700 * 1024


@pytest.fixture(scope="module")
def golden(vectors):
    return vectors / "golden"


@pytest.mark.parametrize("name", PROOFS)
def test_a_golden_proof_is_accepted(golden, golden_task, name):
    verdict = polo.verify(golden / name, trust=golden / "issuer.pub", task=golden_task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
    assert sorted(verdict.per_shard("mark")) == [1, 2, 3]
    tested = {"v1": [1, 2, 3], "v1-thin": [3]}[name]
    assert sorted(verdict.per_shard("accuracy")) == tested
    assert sorted(verdict.per_shard("claim")) == tested


def test_a_thin_proof_needs_no_torch(golden):
    code = """
import sys
sys.modules["torch"] = None
import polo
verdict = polo.verify(
    sys.argv[1], trust=sys.argv[2], policy=polo.Policy(accuracy="none")
)
print(verdict.outcome.name, verdict.headline())
try:
    import torch
except ImportError:
    print("torch was blocked")
"""
    command = [sys.executable, "-W", "error", "-c", code, golden / "v1-thin", golden / "issuer.pub"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ACCEPTED ")
    assert done.stdout.endswith("torch was blocked\n")


@pytest.mark.parametrize("name", PROOFS)
def test_the_folders_are_whole_and_small(golden, name):
    files = [path for path in (golden / name).rglob("*") if path.is_file()]
    listed = json.loads((golden / name / "manifest.json").read_text())["files"]
    assert len(files) == len(listed) + 1
    assert not list(golden.glob("*.state"))
    assert sum(path.stat().st_size for path in golden.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("name", PROOFS)
def test_a_second_reader_agrees(golden, golden_task, second, name):
    issuer = load_public(golden / "issuer.pub").hex()
    matches, checked = second.read_proof(golden / name, issuer)
    verdict = polo.verify(golden / name, trust=golden / "issuer.pub", task=golden_task)
    assert matches == {
        shard: check.figures["matches"] for shard, check in verdict.per_shard("mark").items()
    }
    assert checked == {"v1": [3, 2, 1, 0], "v1-thin": [3]}[name]


@pytest.mark.parametrize("name", PROOFS)
@pytest.mark.parametrize("file", ["openings/000002.safetensors", "checkpoints/000003.safetensors"])
def test_one_bit_is_enough_for_both_to_refuse(golden, second, tmp_path, name, file):
    copy = tmp_path / "proof"
    shutil.copytree(golden / name, copy)
    data = bytearray((copy / file).read_bytes())
    data[-40] ^= 1
    (copy / file).write_bytes(data)
    policy = polo.Policy(accuracy="none")
    verdict = polo.verify(copy, trust=golden / "issuer.pub", policy=policy)
    assert verdict.outcome is polo.Outcome.REJECTED
    with pytest.raises(second.RefusedError, match="digest"):
        second.read_proof(copy, load_public(golden / "issuer.pub").hex())


def test_another_issuer_is_not_trusted(golden, second):
    stranger = polo.Identity.generate().public_key
    verdict = polo.verify(golden / "v1-thin", trust=stranger, policy=polo.Policy(accuracy="none"))
    assert verdict.outcome is polo.Outcome.UNDECIDED
    with pytest.raises(second.RefusedError, match="issuer"):
        second.read_proof(golden / "v1-thin", stranger.hex())


def test_a_delta_written_here_is_read_by_the_second_reader(golden, second, tmp_path):
    layout = Layout.from_bytes((golden / "v1/layout.json").read_bytes(), "layout.json")
    paths = [golden / name / "checkpoints/000003.safetensors" for name in PROOFS]
    with (
        FileCheckpoint.canonical(paths[0], layout) as newer,
        FileCheckpoint.canonical(paths[1], layout) as older,
        (tmp_path / "delta").open("wb") as file,
    ):
        delta.write_delta(older, newer, file)
    plain = layout.to_json()
    whole = [second.read_checkpoint(plain, path.read_bytes()) for path in paths]
    assert whole[0] != whole[1]
    written = (tmp_path / "delta").read_bytes()
    assert second.undo_delta(plain, whole[0], written) == whole[1]


def test_the_golden_proof_of_a_bought_model(golden, golden_task, second):
    proof, issuer = golden / "v1-transfer", golden / "issuer-transfer.pub"
    verdict = polo.verify(proof, trust=issuer, task=golden_task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
    assert [(owner.first, owner.last, owner.how) for owner in verdict.owners] == [
        (1, 3, "trained"),
        (4, 4, "transfer"),
    ]
    assert sorted(verdict.per_shard("mark")) == sorted(verdict.per_shard("accuracy")) == [1]
    read = [check.shard for check in verdict.checks if check.ancestor and check.name == "mark"]
    assert read == [3, 2, 1]
    matches, checked = second.read_proof(proof, load_public(issuer).hex())
    assert matches == {1: verdict.per_shard("mark")[1].figures["matches"]}
    assert checked == [1]
