"""Identities over the wire: another key, giving one up, enrolling once, and scanning a file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_registry import Served, enrol_tiny
from safetensors.torch import save_file
from sqlalchemy import func, select

import polo
from polo.cli import live, run
from polo.client.client import Client
from polo.client.enrolled import LiveEnrolment
from polo.client.http import Connection, Patience, Reply
from polo.errors import OutageError, RegistryError, SignatureError
from polo.registry.schema import enrolments
from polo.storage.folder import ProofFolder

QUICK = Patience(tries=3, first=0.01)


@pytest.fixture
def real(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def client(real: Served, alice: polo.Identity) -> Iterator[Client]:
    with Client(real.url, alice, patience=QUICK) as made:
        made.register("Alice")
        yield made


@pytest.fixture
def keys(alice: polo.Identity, tmp_path: Path) -> tuple[Path, Path]:
    """Alice's key, and one that is to take its place."""
    alice.save(tmp_path / "alice.key")
    polo.Identity.generate().save(tmp_path / "new.key")
    return tmp_path / "alice.key", tmp_path / "new.key"


def test_another_key_takes_over(client: Client, real: Served, alice: polo.Identity) -> None:
    new = polo.Identity.generate()
    said = client.rotate(new)
    assert (said["id"], said["key"]) == (alice.id, new.public_key.hex())
    # The client goes on with it, and the old one counts no more.
    assert client.whoami()["id"] == alice.id
    assert client.register("Alice")["id"] == alice.id
    assert list(client.enrolments()) == []
    with Client(real.url, alice, patience=QUICK) as old, pytest.raises(SignatureError) as refused:
        old.register("Alice")
    assert new.public_key.hex()[:16] in refused.value.advice


def losing_answers(monkeypatch: pytest.MonkeyPatch, path: str) -> list[str]:
    """Let the first answer to requests of a path be lost on its way; what was asked."""
    once, asked = Connection._once, []

    def lossy(self: Connection, request: Any, limit: int) -> Reply:
        reply = once(self, request, limit)
        if request.method == "POST" and request.url.path.endswith(path):
            asked.append(request.headers.get("Idempotency-Key", ""))
            if len(asked) == 1:
                raise OutageError("cut off", code="registry.away")
        return reply

    monkeypatch.setattr(Connection, "_once", lossy)
    return asked


def test_a_rotation_whose_answer_was_lost(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, new = losing_answers(monkeypatch, "/rotate"), polo.Identity.generate()
    assert client.rotate(new)["key"] == new.public_key.hex()
    assert len(asked) == 1
    assert client.whoami()["key"] == new.public_key.hex()


def test_a_rotation_that_is_refused(client: Client, bob: polo.Identity, real: Served) -> None:
    with Client(real.url, bob) as other:
        other.register("Bob")
    with pytest.raises(RegistryError) as refused:
        client.rotate(bob)
    assert refused.value.code == "identity.known"
    client.whoami()


def test_the_command_changes_a_key(
    client: Client, real: Served, task: Any, alice: polo.Identity, keys: tuple[Path, Path],
    train: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    old, new = map(str, keys)
    enrol_tiny(real.registry, real.url, task, alice, tmp_path / "enrolment")
    prover = train(tmp_path / "enrolment", epochs=2, finish=False)
    prover.close()
    change = ["identity", "rotate", real.url, "--key", old, "--to", new]
    assert run(change) == 2
    told = capsys.readouterr().err
    assert "1 chains are open" in told
    assert "--anyway" in told
    assert run([*change, "--anyway"]) == 0
    assert f"id  {alice.id}" in capsys.readouterr().out
    # The chain stays the old key's; the new one asks for it.
    submit = ["submit", str(tmp_path / "proof"), "--key", old, "--close", "--no-verify"]
    assert run(submit) == 2
    assert "--as" in capsys.readouterr().err
    assert run([*submit, "--as", new]) == 0
    manifest = ProofFolder(tmp_path / "proof").manifest()
    assert manifest.finished
    with Client(real.url) as anybody:
        assert anybody.enrolment(manifest.enrolment.digest.hex())["state"] == "closed"


def test_giving_an_identity_up(
    client: Client, real: Served, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    give_up = ["identity", "revoke", real.url, "--key", str(keys[0])]
    assert run(give_up) == 2
    assert "--for-good" in capsys.readouterr().err
    assert run([*give_up, "--for-good", "--reason", "stolen"]) == 0
    assert "revoked 20" in capsys.readouterr().out
    with pytest.raises(RegistryError) as refused:
        list(client.enrolments())
    assert refused.value.code == "caller.revoked"
    assert run(["identity", "show", real.url, "--key", str(keys[0])]) == 0
    assert "revoked 20" in capsys.readouterr().out


@pytest.fixture
def offering(real: Served, task: Any, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A registry that has the terms of digits without building it, which takes seconds."""
    from types import SimpleNamespace

    from polo.registry.enrolments import service
    from polo.weights.checkpoint import checkpoint_of

    terms = polo.make_terms(task, bits=128, shards=3)
    layout = checkpoint_of(task.build_model()).layout
    made = SimpleNamespace(terms=terms, layout=layout)
    monkeypatch.setattr(type(real.registry.tasks), "get", lambda *_: made)

    def terms_for(offered: Any, *, origin: str, log: Any, **_: Any) -> Any:
        from polo.evidence.receipts.rules import Rules

        return polo.make_terms(task, bits=128, shards=3, receipts=Rules(origin=origin, log=log))

    monkeypatch.setattr(service, "terms_for", terms_for)
    return real


def count(real: Served) -> int:
    with real.registry.database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(enrolments)).scalar_one())


def test_an_enrolment_whose_answer_was_lost_is_one(
    client: Client, offering: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = losing_answers(monkeypatch, "/enrolments")
    first = client.enrol("digits")
    assert len(asked) == 2
    assert asked[0] == asked[1] != ""
    assert count(offering) == 1
    assert client.enrol("digits").id != first.id
    assert client.enrol("digits", once="w").id == client.enrol("digits", once="w").id
    assert client.enrol("digits", once="w", bits=256).id != client.enrol("digits", once="w").id
    assert count(offering) == 4


def test_a_command_that_was_cut_off_enrols_once(
    client: Client, offering: Served, keys: tuple[Path, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    command = ["enrol", "--registry", offering.url, "--task", "digits", "--identity", str(keys[0])]
    command += ["--out", str(tmp_path / "out")]
    saved = LiveEnrolment.save

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveEnrolment, "save", killed)
    assert run(command) == 130
    monkeypatch.setattr(LiveEnrolment, "save", saved)
    assert (tmp_path / "out" / live.ASKED_FILE).exists()
    assert run(command) == 0
    assert count(offering) == 1
    assert not (tmp_path / "out" / live.ASKED_FILE).exists()


def test_a_refusal_leaves_no_folder(
    real: Served, client: Client, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    command = ["enrol", "--registry", real.url, "--task", "chess", "--identity", str(keys[0])]
    assert run([*command, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_a_file_is_scanned(client: Client, task: Any, tmp_path: Path) -> None:
    from polo.client.closing import awaited

    save_file(task.build_model().state_dict(), tmp_path / "found.safetensors")
    scan = client.scan(tmp_path / "found.safetensors")
    done = awaited(lambda: client.scanned(scan["id"]), lambda _: None, seconds=60)
    assert done["state"] == "done"
    assert done["result"]["claims"] == []
    with pytest.raises(polo.PoloError):
        client.scan(tmp_path / "missing.safetensors")
