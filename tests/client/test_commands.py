"""`polo enrol --registry`, `polo submit`, `polo status`: what works, and what they say if not."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polo
from polo.cli import run
from polo.cli.submit import _Errand
from polo.client import http
from polo.client.client import Client
from polo.client.enrolled import LiveEnrolment
from polo.protocol.records import Manifest
from polo.storage.folder import ProofFolder
from polo.weights.checkpoint import checkpoint_of

Enrol = Callable[..., LiveEnrolment]
Train = Callable[..., Any]


@pytest.fixture
def key(alice: polo.Identity, tmp_path: Path) -> Path:
    path = tmp_path / "alice.key"
    alice.save(path)
    return path


@pytest.fixture
def cut_off(registry: Any, enrolled: Enrol, train: Train, leave: Callable[[], None]) -> Path:
    """A proof whose run ended while the registry was away."""

    def each(epoch: int, prover: polo.Prover) -> None:
        if epoch == 1:
            leave()

    with pytest.warns(polo.ReceiptWarning):
        proof = train(enrolled(), epochs=3, each=each, wait=0.2)
    registry.start()
    path: Path = proof.path
    return path


def manifest_of(path: Path) -> Manifest:
    return ProofFolder(path).manifest()


def test_submit_brings_the_last_receipt_and_closes(
    cut_off: Path, registry: Any, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manifest_of(cut_off).shards[-1].receipt is None
    assert run(["submit", str(cut_off), "--key", str(key), "--no-verify"]) == 0
    told = capsys.readouterr().out
    assert "shard 3 has its receipt now" in told
    assert "the chain is closed, with 3 shards" in told
    manifest = manifest_of(cut_off)
    assert manifest.shards[-1].receipt is not None
    assert registry.manifests[manifest.enrolment.digest.hex()] == manifest.to_bytes()
    # Again: nothing is left to do, and nothing changes.
    assert run(["submit", str(cut_off), "--key", str(key), "--no-verify"]) == 0
    assert manifest_of(cut_off) == manifest


def test_submit_knows_the_log_from_the_proof(
    cut_off: Path, registry: Any, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.entries[0] = b"another history"
    assert run(["submit", str(cut_off), "--key", str(key), "--no-verify"]) == 2
    assert "the log was forked" in capsys.readouterr().err


def test_submit_closes_an_unfinished_run_only_if_told_to(
    registry: Any, enrolled: Enrol, train: Train, key: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    train(enrolled(), epochs=2, finish=False).close()
    command = ["submit", str(tmp_path / "proof"), "--key", str(key), "--no-verify"]
    assert run(command) == 0
    assert "--close" in capsys.readouterr().out
    assert not registry.manifests
    assert run([*command, "--close", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "closed"
    assert manifest_of(tmp_path / "proof").finished


def test_submit_says_at_once_that_the_registry_is_down(
    cut_off: Path, registry: Any, key: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(
        Client.__init__.__kwdefaults__, "patience", http.Patience(tries=2, first=0.01)
    )
    registry.stop()
    before = time.monotonic()
    assert run(["submit", str(cut_off), "--key", str(key)]) == 2
    assert time.monotonic() - before < 30
    told = capsys.readouterr().err
    assert "cannot be reached" in told
    assert "is it running?" in told
    registry.start()


def test_submit_while_somebody_trains(
    registry: Any, enrolled: Enrol, train: Train, key: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    prover = train(enrolled(), epochs=1, finish=False)
    assert run(["submit", str(tmp_path / "proof"), "--key", str(key)]) == 2
    assert "another prover is writing this proof" in capsys.readouterr().err
    prover.close()


def test_submit_with_another_key(
    cut_off: Path, bob: polo.Identity, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bob.save(tmp_path / "bob.key")
    assert run(["submit", str(cut_off), "--key", str(tmp_path / "bob.key")]) == 2
    told = capsys.readouterr().err
    assert "belongs to another key" in told
    assert "Give the key that it was trained with" in told


@pytest.mark.parametrize(("detail", "looks"), [("", 2), ("another platform", 1)])
def test_nobody_waits_for_an_answer_that_cannot_be_judged(detail: str, looks: int) -> None:
    looked: list[str] = []

    def challenges(name: str) -> list[dict[str, str]]:
        looked.append(name)
        return [{"kind": "checkpoint", "state": "answered", "detail": detail}]

    errand: Any = object.__new__(_Errand)
    errand._wait = 0.1
    errand._enrolment = SimpleNamespace(id="ab" * 32)
    errand._client = SimpleNamespace(challenges=challenges)
    errand._await_challenges(lambda _: None)
    assert len(looked) == looks


def test_the_status_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", str(tmp_path)]) == 2
    assert "neither a proof nor an enrolment" in capsys.readouterr().err


def test_submit_what_is_no_proof(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["submit", str(tmp_path), "--key", str(key)]) == 2
    told = capsys.readouterr().err
    assert "there is no proof here" in told
    assert "Give the folder that holds manifest.json" in told


def test_submit_an_offline_proof(
    make_proof: Callable[..., Any], key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_proof(epochs=1)
    assert run(["submit", str(made.path), "--key", str(key)]) == 2
    assert "made under offline terms" in capsys.readouterr().err


def test_status_of_a_proof_and_of_an_enrolment(
    cut_off: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", str(cut_off), "--key", str(key)]) == 0
    assert "tiny: open, 2 shards" in capsys.readouterr().out
    assert run(["status", str(tmp_path / "enrolment"), "--key", str(key), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["enrolment"]["shards"] == 2


def test_enrol_registers_and_saves(
    registry: Any, task: Any, key: Path, tmp_path: Path, enrolled: Enrol,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    terms = enrolled().record.terms
    registry.offer = lambda name, key: (terms, checkpoint_of(task.build_model()).layout)
    registry.identities.clear()
    out = tmp_path / "new"
    command = ["enrol", "--registry", registry.url, "--task", "tiny", "--identity", str(key)]
    assert run([*command, "--out", str(out)]) == 0
    assert "signed by registry.test/log" in capsys.readouterr().out
    assert list(registry.identities.values()) == ["alice"]
    assert LiveEnrolment.load(out).address.url == registry.url
    assert polo.keys.load_public(out / "issuer.pub") == registry.issuer.public_key
    assert run([*command, "--out", str(out)]) == 2
    assert "holds an enrolment already" in capsys.readouterr().err


def test_enrol_leaves_the_terms_to_the_registry(
    registry: Any, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["enrol", "--registry", registry.url, "--task", "tiny", "--identity", str(key)]
    assert run([*command, "--out", str(tmp_path / "new"), "--shards", "5"]) == 2
    assert "the registry fixes the terms" in capsys.readouterr().err


def test_enrol_needs_somebody_who_signs(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["enrol", "--task", "digits", "--identity", str(key), "--out", str(tmp_path / "x")]
    assert run(command) == 2
    assert "--registry URL" in capsys.readouterr().err


# Wrong addresses


@pytest.fixture
def web_server() -> Iterator[str]:
    """Something that is no registry."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def complaint(url: str, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    command = ["enrol", "--registry", url, "--task", "tiny", "--identity", str(key)]
    assert run([*command, "--out", str(tmp_path / "new")]) == 2
    return capsys.readouterr().err


def test_an_address_that_is_none(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = complaint("registry.example", key, tmp_path, capsys)
    assert "is no address of a registry" in told
    assert "https://" in told


def test_an_address_of_something_else(
    web_server: str, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = complaint(web_server, key, tmp_path, capsys)
    assert "answers 404" in told
    assert "Is this the address of a registry?" in told


@pytest.mark.parametrize(
    ("code", "advice", "shown"),
    [
        ("resource.missing", "", "Is this the address of a registry?"),
        ("task.missing", "Offered are digits.", "Offered are digits."),
    ],
)
def test_a_page_that_a_registry_does_not_have(code: str, advice: str, shown: str) -> None:
    body = json.dumps({"code": code, "detail": "nothing", "advice": advice}).encode()
    reply = http.Reply(404, body, {"content-type": "application/problem+json"})
    assert shown in http._refusal(reply, "https://registry.example/wrong").diagnostics()


def test_https_where_none_is_spoken(
    web_server: str, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    once = http.Patience(tries=1)
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "patience", once)
    told = complaint(web_server.replace("http:", "https:"), key, tmp_path, capsys)
    assert "It does not speak https" in told


def test_a_registry_that_is_down(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from polo.client import client
    from polo.client.http import Patience

    monkeypatch.setattr(client, "PATIENCE", Patience(tries=2, first=0.01))
    monkeypatch.setitem(client.Client.__init__.__kwdefaults__, "patience", client.PATIENCE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = complaint(f"http://127.0.0.1:{port}", key, tmp_path, capsys)
    assert "cannot be reached" in told
    assert "is it running?" in told


def test_a_clock_that_is_off(
    cut_off: Path, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = SimpleNamespace(**{name: getattr(time, name) for name in dir(time) if name[0] != "_"})
    wrong.time = lambda: time.time() - 3600
    monkeypatch.setattr("polo.client.http.time", wrong)
    assert run(["submit", str(cut_off), "--key", str(key)]) == 2
    assert "Set this machine's clock" in capsys.readouterr().err
