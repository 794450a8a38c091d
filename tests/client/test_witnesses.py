"""Terms that name witnesses: what they cosigned gets into the proof before the chain is closed."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from real_registry import Served, enrol_tiny

import polo
from polo.checks import Status
from polo.cli import run
from polo.client import witnesses
from polo.client.client import Client
from polo.client.http import Patience
from polo.protocol import log_notes
from polo.protocol.log_notes import COSIGNATURE, Note, NoteKey
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome


class Witness:
    """Somebody who watches a log and cosigns its newest checkpoint."""

    def __init__(self, name: str) -> None:
        self._signer = polo.Identity.generate()
        self.key = NoteKey(name, self._signer.public_key, COSIGNATURE)

    def cosign(self, url: str) -> None:
        note = Note.parse(httpx2.get(f"{url}/log/checkpoint").text, place="checkpoint")
        line = log_notes.cosign(note.text, self.key.name, self._signer, int(time.time()))
        taken = httpx2.post(f"{url}/v1/log/cosignatures", content=str(note.signed(line)))
        assert self.key.name in taken.json()["witnesses"]


ANNE, BERT, CARL = Witness("anne.test"), Witness("bert.test"), Witness("carl.test")


@pytest.fixture
def real(serve: Callable[..., Served]) -> Served:
    """A registry that takes cosignatures of three witnesses."""
    return serve(witnesses=tuple(each.key.text for each in (ANNE, BERT, CARL)))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "LOOK", Patience(first=0.05, most=0.1))


@pytest.fixture
def proof(
    real: Served, task: Any, alice: polo.Identity, train: Callable[..., Any], tmp_path: Path
) -> Path:
    """A finished proof whose terms ask for Anne and Bert; they have not cosigned."""
    alice.save(tmp_path / "alice.key")
    enrol(real, task, alice, tmp_path / "enrolment")
    with pytest.warns(polo.ReceiptWarning, match="not seen by 2 of 2 witnesses yet"):
        path: Path = train(tmp_path / "enrolment", epochs=2, wait=0.1).path
    return path


def enrol(real: Served, task: Any, key: polo.Identity, folder: Path) -> None:
    asked = {"witnesses": (ANNE.key, BERT.key), "quorum": 2}
    enrol_tiny(real.registry, real.url, task, key, folder, receipts=asked)


def submit(proof: Path, *more: str) -> int:
    key = str(proof.parent / "alice.key")
    return run(["submit", str(proof), "--key", key, "--wait", "0", "--no-verify", *more])


def state_of(real: Served, proof: Path) -> str:
    with Client(real.url) as client:
        name = ProofFolder(proof).manifest().enrolment.digest.hex()
        return str(client.enrolment(name)["state"])


def verified(proof: Path, task: Any) -> tuple[Outcome, list[tuple[Status, str]]]:
    issuer = ProofFolder(proof).manifest().enrolment.issuer
    verdict = polo.verify(proof, trust=issuer, task=task)
    said = [(check.status, check.detail) for check in verdict.checks if check.name == "witness"]
    return verdict.outcome, said


def test_the_close_waits_for_the_quorum(
    real: Served, proof: Path, task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(proof) == 2
    told = capsys.readouterr().err
    assert "3 entries were not seen by 2 of 2 witnesses yet" in told
    assert "--unwitnessed" in told
    # One of them, and one whom these terms do not name, are no quorum.
    for witness in (ANNE, CARL):
        witness.cosign(real.url)
    assert submit(proof) == 2
    assert state_of(real, proof) == "open"
    assert verified(proof, task)[0] is Outcome.UNDECIDED
    BERT.cosign(real.url)
    assert submit(proof) == 0
    assert state_of(real, proof) == "closed"
    outcome, said = verified(proof, task)
    assert outcome is Outcome.ACCEPTED
    assert len(said) == 1
    assert said[0][0] is Status.PASSED
    assert "2 of 2 witnesses saw every entry" in said[0][1]
    # Again: nothing changes.
    before = ProofFolder(proof).manifest()
    assert submit(proof) == 0
    assert ProofFolder(proof).manifest() == before


def test_closed_without_by_choice(
    real: Served, proof: Path, task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(proof, "--unwitnessed") == 0
    assert state_of(real, proof) == "closed"
    assert verified(proof, task)[0] is Outcome.UNDECIDED
    closed_with = ProofFolder(proof).manifest()
    for witness in (ANNE, BERT):
        witness.cosign(real.url)
    # Too late: the registry holds the manifest that the chain was closed with.
    assert submit(proof) == 0
    assert ProofFolder(proof).manifest() == closed_with


def test_witnesses_who_cosign_while_a_run_finishes(
    real: Served, task: Any, alice: polo.Identity, train: Callable[..., Any], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    enrol(real, task, alice, tmp_path / "enrolment")

    def cosign_later() -> None:
        while "waiting for 2 of 2 witnesses" not in caplog.text:
            time.sleep(0.01)
        for witness in (ANNE, BERT):
            witness.cosign(real.url)

    thread = threading.Thread(target=cosign_later, daemon=True)
    thread.start()
    proof = train(tmp_path / "enrolment", epochs=2, wait=20)
    thread.join(5)
    assert state_of(real, proof.path) == "closed"
    assert verified(proof.path, task)[0] is Outcome.ACCEPTED


def test_a_checkpoint_of_other_witnesses_does_not_stand_in_the_way(
    real: Served, proof: Path, task: Any
) -> None:
    """The first checkpoint with two cosignatures has one too few of those that count."""
    for witness in (ANNE, CARL, BERT):
        witness.cosign(real.url)
    assert submit(proof) == 0
    assert verified(proof, task)[0] is Outcome.ACCEPTED


def test_the_command_of_a_witness(
    serve: Callable[..., Served], task: Any, alice: polo.Identity, train: Callable[..., Any],
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Two keys of `polo keygen`, named by operator and terms: all by the command line."""
    keys = []
    for name in ("dora.test", "emil.test"):
        signer = polo.Identity.generate()
        signer.save(tmp_path / f"{name}.key")
        keys.append(NoteKey(name, signer.public_key, COSIGNATURE))
    real = serve(witnesses=tuple(key.text for key in keys))
    asked = {"witnesses": tuple(keys), "quorum": 2}
    folder = tmp_path / "enrolment"
    enrol_tiny(real.registry, real.url, task, alice, folder, receipts=asked)
    alice.save(tmp_path / "alice.key")

    def cosign(name: str) -> int:
        key, seen = str(tmp_path / f"{name}.key"), str(tmp_path / f"{name}.json")
        return run(["log", "witness", real.url, "--key", key, "--name", name, "--save", seen])

    assert cosign("dora.test") == 0
    assert f"your key: {keys[0].text}" in capsys.readouterr().out
    with pytest.warns(polo.ReceiptWarning):
        proof = train(folder, epochs=2, wait=0.1).path
    for name in ("dora.test", "emil.test", "emil.test"):
        assert cosign(name) == 0
        assert "cosigned, with 3 entries" in capsys.readouterr().out
    assert submit(proof) == 0
    assert verified(proof, task)[0] is Outcome.ACCEPTED
    # One that nobody named is told so.
    alice.save(tmp_path / "fritz.test.key")
    assert cosign("fritz.test") == 2
    assert "no witness that is known here" in capsys.readouterr().err


def test_the_audit_takes_the_key_from_the_proof(
    real: Served, proof: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "audit", real.url, "--proof", str(proof)]) == 0
    assert "own word" not in capsys.readouterr().out
    assert run(["log", "audit", real.url]) == 0
    assert "own word" in capsys.readouterr().out


def test_what_terms_ask_of_witnesses(
    real: Served, task: Any, alice: polo.Identity, tmp_path: Path
) -> None:
    plain = enrol_tiny(real.registry, real.url, task, alice, tmp_path / "plain")
    assert witnesses.Asked.of(plain.record) is None
    asked = {"witnesses": (ANNE.key, BERT.key, CARL.key), "quorum": 2}
    made = enrol_tiny(real.registry, real.url, task, alice, tmp_path / "asked", receipts=asked)
    found = witnesses.Asked.of(made.record)
    assert found is not None
    assert found.words == "2 of 3 witnesses"
    assert (found.origin, found.log.name) == ("registry.test/log", "registry.test/log")
