"""Level uniqueness: the registry's statement, and what a verifier makes of it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.checks import Check, Status
from polo.errors import FormatError, SignatureError
from polo.protocol import signing
from polo.protocol.records import EvidenceTerms
from polo.protocol.uniqueness import MAX_CLAIMS, Resemblance, Uniqueness
from polo.storage.folder import MANIFEST_FILE, ProofFolder, uniqueness_path
from polo.storage.statements import file_uniqueness

OTHER = Resemblance(bytes([7]) * 32, True, "none", 900)


@pytest.fixture
def made(make_proof: Any) -> Any:
    """A proof whose terms ask for the level, without the statement."""
    return make_proof(terms={"uniqueness": True}, epochs=2)


def statement_of(made: Any, **changes: Any) -> Uniqueness:
    manifest = ProofFolder(made.path).manifest()
    said = Uniqueness(
        manifest.enrolment.digest, manifest.last_root, "registry.test/log", 40, 3, 1, 1_800_000_000,
        (),
    )  # fmt: skip
    return signing.sign(dataclasses.replace(said, **changes), made.issuer)


def judged(made: Any) -> tuple[polo.Verdict, Check]:
    verdict = polo.verify(made.path, trust=made.issuer.public_key, task=made.task)
    (check,) = [check for check in verdict.checks if check.level == "uniqueness"]
    return verdict, check


@pytest.fixture
def put(made: Any, alice: polo.Identity) -> Callable[[bytes], None]:
    """Lists and signs a file in the statement's place, whatever it says."""

    def write(data: bytes) -> None:
        import hashlib

        from polo.protocol.records import File

        manifest = ProofFolder(made.path).manifest()
        place = uniqueness_path(len(manifest.shards))
        path = made.path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        file = File(place, len(data), hashlib.sha256(data).digest())
        files = tuple(sorted((*manifest.files, file), key=lambda item: item.path))
        signed = signing.sign(dataclasses.replace(manifest, files=files), alice)
        (made.path / MANIFEST_FILE).write_bytes(signed.to_bytes())

    return write


def test_a_statement_without_claims_passes(made: Any, alice: polo.Identity) -> None:
    manifest = file_uniqueness(made.path, statement_of(made), alice)
    assert uniqueness_path(2) in {file.path for file in manifest.files}
    verdict, check = judged(made)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
    assert check.status is Status.PASSED
    assert check.detail == "none of 3 chains is in the last checkpoint"
    assert check.figures["unread"] == 1
    assert "uniqueness" in verdict.headline()
    gaps = " ".join(gap for _, gap in verdict.gaps())
    assert "never registered" in gaps


def test_without_a_statement_it_cannot_be_decided(made: Any) -> None:
    verdict, check = judged(made)
    assert verdict.outcome is polo.Outcome.UNDECIDED
    assert check.status is Status.UNDECIDED
    assert "POST /v1/scans" in check.advice


def test_an_earlier_stranger_in_the_weights_rejects(made: Any, alice: polo.Identity) -> None:
    file_uniqueness(made.path, statement_of(made, claims=(OTHER,)), alice)
    verdict, check = judged(made)
    assert verdict.outcome is polo.Outcome.REJECTED
    assert "0707070707070707" in check.detail
    assert "-900" in check.detail


@pytest.mark.parametrize(
    "change", [{"earlier": False}, {"relation": "own"}, {"relation": "parent"}]
)
def test_lineage_and_latecomers_do_not(made: Any, alice: polo.Identity, change: Any) -> None:
    claim = dataclasses.replace(OTHER, **change)
    file_uniqueness(made.path, statement_of(made, claims=(claim,)), alice)
    verdict, check = judged(made)
    assert verdict.outcome is polo.Outcome.ACCEPTED
    assert "but for 1 of its own lineage" in check.detail


def test_the_statement_must_be_the_issuers(
    made: Any, alice: polo.Identity, put: Callable[[bytes], None]
) -> None:
    forged = signing.sign(statement_of(made), alice)
    with pytest.raises(SignatureError):
        file_uniqueness(made.path, forged, alice)
    put(forged.to_bytes())
    verdict, check = judged(made)
    assert verdict.outcome is polo.Outcome.REJECTED
    assert check.status is Status.FAILED


@pytest.mark.parametrize("change", [{"root": bytes(32)}, {"enrolment": bytes(32)}])
def test_a_statement_about_something_else_fails(
    made: Any, alice: polo.Identity, put: Callable[[bytes], None], change: Any
) -> None:
    other = statement_of(made, **change)
    with pytest.raises(SignatureError):
        file_uniqueness(made.path, other, alice)
    put(other.to_bytes())
    assert judged(made)[1].status is Status.FAILED


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 2000, b" " * 600_000, b"\x00" * 50])
def test_a_hostile_file_fails(made: Any, put: Callable[[bytes], None], data: bytes) -> None:
    put(data)
    verdict, check = judged(made)
    assert verdict.outcome is polo.Outcome.REJECTED
    assert check.status is Status.FAILED


def test_settings_are_refused(made: Any, enrol: Any) -> None:
    from polo.evidence.uniqueness import uniqueness

    manifest = ProofFolder(made.path).manifest()
    terms = manifest.terms
    levels = (terms.evidence[0], EvidenceTerms("uniqueness", {"any": "thing"}))
    changed = dataclasses.replace(
        manifest,
        enrolment=dataclasses.replace(
            manifest.enrolment, terms=dataclasses.replace(terms, evidence=levels)
        ),
    )
    (check,) = uniqueness(ProofFolder(made.path), changed, ())
    assert check.status is Status.FAILED
    assert "'any'" in check.detail


def test_the_record_is_bounded(made: Any, tmp_path: Path) -> None:
    said = statement_of(made, claims=(OTHER,) * MAX_CLAIMS)
    assert Uniqueness.from_bytes(said.to_bytes(), "here") == said
    with pytest.raises(FormatError):
        Uniqueness.from_bytes(statement_of(made, claims=(OTHER,) * 1001).to_bytes(), "here")
