"""Ownership of the final model only: what is asked for, and what is not."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import polo
from polo.checks import Status
from polo.protocol import signing
from polo.protocol.records import Bundle, File
from polo.storage import bundle as bundles
from polo.storage.bundle import read_bundle, write_bundle
from polo.storage.folder import MANIFEST_FILE, ProofFolder, checkpoint_path, nonce_path
from polo.verifier import Outcome
from polo.verifier.report import render

FINAL = polo.Policy(final_only=True)


@pytest.fixture
def made(make_proof: Callable[..., Any]) -> Any:
    return make_proof(epochs=4)


def final(made: Any, issuer: polo.Identity, **options: Any) -> polo.Verdict:
    return polo.verify(made.path, trust=issuer.public_key, policy=FINAL, **options)


def test_the_owner_is_named(made: Any, issuer: polo.Identity) -> None:
    verdict = final(made, issuer)
    assert verdict.outcome is Outcome.ACCEPTED, verdict
    assert verdict.headline().startswith("ACCEPTED as ownership of the final model only")
    assert "history" in verdict.caution
    assert set(verdict.per_shard("residual")) == {1, 2, 3, 4}
    assert not verdict.per_shard("accuracy")
    assert "as ownership of the final model" in render(verdict)
    (told,) = verdict.to_json()["levels"]
    assert (told["level"], told["outcome"]) == ("ownership", "passed")
    assert told["found"].startswith("4 marks together: η = ")
    assert "✓ passed</span></h2><p>4 marks together" in render(verdict)


def test_nothing_but_the_final_model_is_needed(made: Any, issuer: polo.Identity) -> None:
    for path in (made.path / "openings").iterdir():
        path.unlink()
    for path in sorted((made.path / "checkpoints").iterdir())[:-1]:
        path.unlink()
    assert final(made, issuer).outcome is Outcome.ACCEPTED


def test_other_weights_are_not_taken_for_the_final_model(made: Any, issuer: polo.Identity) -> None:
    shutil.copy(made.path / checkpoint_path(0), made.path / checkpoint_path(4))
    verdict = final(made, issuer)
    assert verdict.outcome is Outcome.REJECTED
    assert next(verdict.of(Status.FAILED)).name == "root"


def test_a_model_may_be_given_instead(made: Any, issuer: polo.Identity, tmp_path: Path) -> None:
    weights = load_file(made.path / checkpoint_path(4))
    halves = {name: v.astype("f2") if v.dtype == "f4" else v for name, v in weights.items()}
    save_file(halves, tmp_path / "half.safetensors")
    assert final(made, issuer, model=tmp_path / "half.safetensors").outcome is Outcome.ACCEPTED
    rng = np.random.default_rng(1)
    others = {
        name: rng.normal(size=v.shape).astype("f4") if v.dtype == "f4" else v
        for name, v in weights.items()
    }
    save_file(others, tmp_path / "other.safetensors")
    verdict = final(made, issuer, model=tmp_path / "other.safetensors")
    assert verdict.outcome is Outcome.REJECTED
    assert next(verdict.of(Status.FAILED)).name == "ownership"


def test_what_cannot_be_decided(made: Any, issuer: polo.Identity, tmp_path: Path) -> None:
    assert polo.verify(made.path, trust=[], policy=FINAL).outcome is Outcome.UNDECIDED
    assert polo.verify(tmp_path / "no", trust=[], policy=FINAL).outcome is Outcome.UNDECIDED
    for shard in range(1, 5):
        (made.path / nonce_path(shard)).unlink()
    verdict = final(made, issuer)
    assert verdict.outcome is Outcome.UNDECIDED
    assert "no nonce" in verdict.headline()


def test_a_chain_out_of_order_is_rejected(
    made: Any, issuer: polo.Identity, alice: polo.Identity
) -> None:
    manifest = ProofFolder(made.path).manifest()
    one, two, *rest = manifest.shards
    forged = signing.sign(replace(manifest, shards=(two, one, *rest)), alice)
    (made.path / MANIFEST_FILE).write_bytes(forged.to_bytes())
    assert final(made, issuer).outcome is Outcome.REJECTED


def test_part_of_a_proof_is_no_whole_one(made: Any, issuer: polo.Identity, tmp_path: Path) -> None:
    whole = polo.Policy(final_only=True, whole=True)
    last = made.path / checkpoint_path(4)

    def finds(proof: Path, policy: polo.Policy) -> polo.Verdict:
        return polo.verify(proof, trust=issuer.public_key, policy=policy, model=last)

    assert finds(made.path, whole).outcome is Outcome.ACCEPTED
    manifest = ProofFolder(made.path).manifest()
    for bundle in (Bundle("buyer", (1, 2, 3, 4)), bundles.whole(manifest), bundles.PUBLIC):
        write_bundle(ProofFolder(made.path), tmp_path / f"{bundle.kind}.polo", bundle)
    assert finds(tmp_path / "verifier.polo", whole).outcome is Outcome.ACCEPTED
    assert finds(tmp_path / "buyer.polo", FINAL).outcome is Outcome.ACCEPTED
    for kind in ("buyer", "public"):
        verdict = finds(tmp_path / f"{kind}.polo", whole)
        assert verdict.outcome is Outcome.UNDECIDED
        assert "only part of the proof is here" in verdict.headline()
    # Who removes the note that it is a part has not got the rest of it.
    read_bundle(tmp_path / "buyer.polo", tmp_path / "part")
    (tmp_path / "part" / "bundle.json").unlink()
    assert finds(tmp_path / "part", FINAL).outcome is Outcome.ACCEPTED
    assert finds(tmp_path / "part", whole).outcome is Outcome.UNDECIDED


def test_a_disclosure_holds_no_weights(made: Any, issuer: polo.Identity, tmp_path: Path) -> None:
    path = tmp_path / "bob.polo"
    write_bundle(ProofFolder(made.path), path, Bundle("buyer", (1,)))
    verdict = polo.verify(path, trust=issuer.public_key, policy=FINAL)
    assert verdict.outcome is Outcome.UNDECIDED
    (check,) = verdict.of(Status.UNDECIDED)
    assert "a disclosure holds no weights" in check.detail
    assert "--model FILE" in check.advice
    assert check.place == str(path)


def test_messages_name_the_bundle(made: Any, tmp_path: Path) -> None:
    path = tmp_path / "bob.polo"
    write_bundle(ProofFolder(made.path), path, Bundle("buyer", (1,)))
    verdict = polo.verify(path, trust=[], policy=FINAL)
    (check,) = verdict.of(Status.UNDECIDED)
    assert check.name == "issuer"
    assert check.place == str(path)


def test_all_checks_of_a_bundle_name_the_bundle(
    made: Any, issuer: polo.Identity, alice: polo.Identity, tmp_path: Path
) -> None:
    """A checkpoint that was signed and is none: its error knows where the bundle was unpacked."""
    folder, name = ProofFolder(made.path), checkpoint_path(4)
    (made.path / name).write_bytes(b"none")
    manifest = folder.manifest()
    wrong = File(name, 4, hashlib.sha256(b"none").digest())
    files = tuple(wrong if file.path == name else file for file in manifest.files)
    signed = signing.sign(replace(manifest, files=files), alice)
    (made.path / MANIFEST_FILE).write_bytes(signed.to_bytes())
    write_bundle(folder, tmp_path / "bob.polo", bundles.whole(signed))
    verdict = polo.verify(tmp_path / "bob.polo", trust=issuer.public_key, task=made.task)
    assert verdict.outcome is Outcome.REJECTED
    told = " ".join(f"{check.place} {check.detail} {check.advice}" for check in verdict.checks)
    assert f"{tmp_path}/bob.polo/{name}" in told
    assert "/polo-" not in told


def test_a_model_that_cannot_be_read_decides_nothing(
    made: Any, issuer: polo.Identity, tmp_path: Path
) -> None:
    (tmp_path / "model.pt").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    for name in ("model.pt", "model.gguf", "nowhere.safetensors"):
        verdict = final(made, issuer, model=tmp_path / name)
        assert verdict.outcome is Outcome.UNDECIDED, verdict.headline()
