"""Verifying part of a proof: what was shown is checked, the rest is not spoken of."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import polo
from polo.checks import Check, numbered, spans
from polo.protocol.records import Bundle
from polo.storage.bundle import PUBLIC, read_bundle, whole, write_bundle
from polo.storage.folder import ProofFolder, checkpoint_path, nonce_path, opening_path
from polo.verifier import Outcome, Policy, Status
from polo.verifier.report import render
from polo.verifier.terminal import show
from polo.verifier.verdict import Verdict

GOLDEN = Path(__file__).parents[2] / "vectors" / "golden"
PROOF = ProofFolder(GOLDEN / "v1")
BUYER = Bundle("buyer", (1, 3))


def verify(proof: Path, **options: Any) -> Verdict:
    return polo.verify(proof, trust=GOLDEN / "issuer.pub", **options)


@pytest.fixture
def part(tmp_path: Path) -> Callable[[Bundle], Path]:
    """Unpacks part of the golden proof."""

    def make(bundle: Bundle) -> Path:
        write_bundle(PROOF, tmp_path / "a.polo", bundle)
        read_bundle(tmp_path / "a.polo", tmp_path / "part")
        return tmp_path / "part"

    return make


def printed(verdict: Verdict) -> str:
    screen = io.StringIO()
    show(verdict, Console(file=screen, width=100))
    return screen.getvalue()


@pytest.mark.parametrize("packed", [True, False], ids=["bundle", "folder"])
def test_a_disclosure_is_accepted_for_what_it_shows(
    part: Callable[[Bundle], Path], tmp_path: Path, packed: bool
) -> None:
    folder = part(BUYER)
    verdict = verify(tmp_path / "a.polo" if packed else folder)
    assert verdict.outcome is Outcome.ACCEPTED
    assert verdict.headline() == (
        "ACCEPTED as a disclosure: order, identity and marks 1 and 3 of 3 hold; the other marks "
        "were not shown"
    )
    assert sorted(verdict.per_shard("mark")) == sorted(verdict.per_shard("nonce")) == [1, 3]
    assert not {"root", "accuracy", "claim"} & {check.name for check in verdict.checks}
    found = verdict.to_json()
    assert found["bundle"] == {"format": "polo/bundle/1", "kind": "buyer", "shards": [1, 3]}
    assert "the marks that were shown" in found["levels"][0]["shows"]
    assert "accuracy" not in found["levels"][0]["shows"]
    assert verdict.shown == (1, 3)


def test_how_a_disclosure_is_shown(part: Callable[[Bundle], Path]) -> None:
    verdict = verify(part(Bundle("buyer", (2,))))
    text = " ".join(printed(verdict).split())
    assert "mark 2 of 3 hold; the other marks were not shown" in text
    assert text.count("1 shard not shown") == 2
    assert "The model was not shown" in text
    assert "undecided" not in text
    page = render(verdict)
    assert "as a disclosure" in page
    assert "at level chain" not in page
    assert page.count("1 not shown") == 2
    assert "What was shown" in page
    assert "The model was not shown" in page


def test_all_marks_without_a_model(part: Callable[[Bundle], Path]) -> None:
    verdict = verify(part(Bundle("buyer", (1, 2, 3))))
    assert verdict.outcome is Outcome.ACCEPTED
    assert verdict.headline().endswith("all 3 marks hold; the weights were not shown")


def test_a_public_bundle_decides_nothing(part: Callable[[Bundle], Path]) -> None:
    verdict = verify(part(PUBLIC))
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.headline() == (
        "COULD NOT DECIDE: signatures, order and links hold; the marks were not checked, since a "
        "public bundle shows no nonce"
    )
    (undecided,) = verdict.of(Status.UNDECIDED)
    assert undecided.name == "mark"
    assert not list(verdict.of(Status.FAILED))
    assert {"issuer", "signature", "order", "links"} <= {c.name for c in verdict.of(Status.PASSED)}
    assert "the marks were not checked" in " ".join(printed(verdict).split())
    assert "Could not decide" in render(verdict)


def test_the_verifiers_bundle_is_the_whole_proof(tmp_path: Path) -> None:
    write_bundle(PROOF, tmp_path / "a.polo", whole(PROOF.manifest()))
    packed = verify(tmp_path / "a.polo", policy=Policy("none", whole=True))
    plain = verify(PROOF.path, policy=Policy("none", whole=True))
    assert packed.outcome is plain.outcome is Outcome.ACCEPTED
    assert packed.headline() == plain.headline()
    assert packed.shown is plain.shown is None
    # As another tool unpacks it, with the note in place.
    shutil.copytree(PROOF.path, tmp_path / "copy")
    (tmp_path / "copy" / "bundle.json").write_bytes(whole(PROOF.manifest()).to_bytes())
    again = verify(tmp_path / "copy", policy=Policy("none"))
    assert again.outcome is Outcome.ACCEPTED
    assert again.shown is None
    (tmp_path / "copy" / checkpoint_path(3)).unlink()
    assert verify(tmp_path / "copy", policy=Policy("none")).outcome is Outcome.UNDECIDED


def test_who_needs_the_whole_proof_can_say_so(part: Callable[[Bundle], Path]) -> None:
    folder = part(BUYER)
    verdict = verify(folder, policy=Policy(whole=True))
    assert verdict.outcome is Outcome.UNDECIDED
    assert "a whole one was asked for" in verdict.headline()


@pytest.mark.parametrize("name", [nonce_path(3), opening_path(3), "layout.json"])
def test_a_file_of_a_shown_shard_is_missed(part: Callable[[Bundle], Path], name: str) -> None:
    folder = part(BUYER)
    (folder / name).unlink()
    verdict = verify(folder)
    assert verdict.outcome is Outcome.UNDECIDED
    assert any(check.place.endswith(name) for check in verdict.of(Status.UNDECIDED))


@pytest.mark.parametrize("name", ["nonces/000003.json", "openings/000001.safetensors"])
def test_a_file_of_a_shown_shard_must_be_as_signed(
    part: Callable[[Bundle], Path], name: str
) -> None:
    folder = part(BUYER)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    verdict = verify(folder)
    assert verdict.outcome is Outcome.REJECTED
    assert next(verdict.of(Status.FAILED)).place == name


def test_what_is_there_beyond_must_be_as_signed(part: Callable[[Bundle], Path]) -> None:
    folder = part(BUYER)
    name = opening_path(2)
    shutil.copy(PROOF.path / name, folder / name)
    assert verify(folder).outcome is Outcome.ACCEPTED
    (folder / name).write_bytes(b"something else")
    verdict = verify(folder)
    assert verdict.outcome is Outcome.REJECTED
    assert next(verdict.of(Status.FAILED)).place == name
    (folder / name).unlink()
    (folder / "stray").touch()
    assert verify(folder).outcome is Outcome.REJECTED


@pytest.mark.parametrize(
    "document",
    [
        b"{}",
        b"not JSON",
        Bundle("buyer", ()).to_bytes(),
        Bundle("buyer", (4,)).to_bytes(),
        Bundle("buyer", (3, 1)).to_bytes(),
        Bundle("public", (1,)).to_bytes(),
        Bundle("verifier", (1,)).to_bytes(),
        Bundle("buyer", (1,)).to_bytes().replace(b"buyer", b"seller"),
        b" " * 200_000,
    ],
)
def test_a_bundle_that_does_not_fit(part: Callable[[Bundle], Path], document: bytes) -> None:
    folder = part(BUYER)
    (folder / "bundle.json").write_bytes(document)
    verdict = verify(folder)
    assert verdict.outcome is Outcome.REJECTED
    assert [check.name for check in verdict.of(Status.FAILED)] == ["bundle"]
    render(verdict)


def test_a_bundle_note_that_is_a_link(part: Callable[[Bundle], Path], tmp_path: Path) -> None:
    folder = part(BUYER)
    (folder / "bundle.json").rename(tmp_path / "elsewhere.json")
    (folder / "bundle.json").symlink_to(tmp_path / "elsewhere.json")
    assert verify(folder).outcome is not Outcome.ACCEPTED


def test_a_delivered_model_is_told_by_its_root(part: Callable[[Bundle], Path]) -> None:
    verdict = verify(part(BUYER), model=PROOF.path / checkpoint_path(3))
    assert verdict.outcome is Outcome.ACCEPTED
    assert "delivered" in {check.name for check in verdict.of(Status.PASSED)}


def test_an_untrusted_issuer_comes_first(part: Callable[[Bundle], Path], tmp_path: Path) -> None:
    for bundle in (BUYER,):
        verdict = polo.verify(part(bundle), trust=[])
        assert verdict.outcome is Outcome.UNDECIDED
        assert "issuer" in verdict.headline()
        assert verdict.bundle == bundle


def test_a_failed_mark_of_a_disclosure(part: Callable[[Bundle], Path]) -> None:
    """Marks that fail are rejected as in a whole proof."""
    verdict = verify(part(BUYER))
    failed = Check("mark", Status.FAILED, "η = 0.5", shard=3)
    again = Verdict(verdict.proof, (*verdict.checks, failed), verdict.facts, bundle=BUYER)
    assert again.headline().startswith("REJECTED: mark (shard 3)")
    assert json.dumps(again.to_json())
    assert "Rejected" in render(again)


def test_numbers_are_read_as_people_do() -> None:
    assert spans([1, 2, 3, 4, 9]) == "1 to 4 and 9"
    assert spans([5]) == "5"
    assert spans([7, 8]) == "7 and 8"
    assert len(numbered("mark", range(1, 10_000, 2))) < 20
