"""The client and the trainer against the real registry, over the wire."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.cli import run
from polo.client.client import Client
from polo.client.enrolled import LiveEnrolment
from polo.client.http import Patience
from polo.errors import RegistryError
from polo.verifier import Outcome

TASKS = """
[digits]
bits = 256
shards = 8
fewest_shards = 1
strength = 0.02
history = "streaming"
checkpoints = 0.5
"""


@pytest.fixture
def real(serve: Callable[..., Any]) -> Any:
    """A real registry that offers digits."""
    return serve(TASKS)


@pytest.fixture
def client(real: Any, alice: polo.Identity) -> Iterator[Client]:
    """Alice's client of it."""
    with Client(real.url, alice, patience=Patience(tries=3, first=0.05)) as made:
        yield made


def test_registering_twice_is_once(client: Client, alice: polo.Identity) -> None:
    first = client.register("Alice")
    assert first["id"] == alice.id
    assert client.register("Alice again") == first


def test_who_is_not_registered_is_told_so(client: Client) -> None:
    with pytest.raises(RegistryError) as refused:
        client.enrol("digits")
    assert refused.value.code == "caller.unknown-key"
    assert "polo enrol --registry" in refused.value.advice


@pytest.mark.slow
def test_a_streamed_run_from_enrolment_to_verdict(
    client: Client, real: Any, alice: polo.Identity, tmp_path: Path,
    train_digits: Callable[..., Any], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client.register("Alice")
    enrolment = client.enrol("digits").save(tmp_path / "enrolment")
    assert LiveEnrolment.load(tmp_path / "enrolment") == enrolment
    monkeypatch.setattr("polo.prover.receiving.GRACE", 0.2)

    def come_back(prover: polo.Prover) -> None:
        while not prover._nonces.trouble:
            time.sleep(0.05)
        time.sleep(1.0)
        real.start()

    def each(epoch: int, prover: polo.Prover) -> None:
        if epoch == 1:
            real.stop()
            threading.Thread(target=come_back, args=(prover,), daemon=True).start()

    with pytest.warns(polo.ReceiptWarning):
        proof = train_digits(
            tmp_path / "enrolment", each=each, retention="streaming", on_outage="wait"
        )
    assert proof.shards >= 3
    issuer = enrolment.record.issuer
    verdict = polo.verify(proof.path, trust=issuer)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
    assert client.enrolment(enrolment.id)["state"] == "closed"
    # The registry reaches the same verdict, from what was streamed to it.
    alice.save(tmp_path / "alice.key")
    command = [str(proof.path), "--key", str(tmp_path / "alice.key")]
    assert run(["submit", *command, "--report", str(tmp_path / "report.html")]) == 0
    assert "accepted" in capsys.readouterr().out
    assert b"<html" in (tmp_path / "report.html").read_bytes()
    # Once more asks for nothing more: the verdict is there.
    assert run(["submit", *command]) == 0
    assert "the registry's verdict: accepted" in capsys.readouterr().out
    assert len(client.verifications(enrolment.id)) == 1
    assert run(["status", *command]) == 0
    told = capsys.readouterr().out
    assert f"digits: closed, {proof.shards} shards" in told
    assert "verification" in told


@pytest.fixture
def train_digits(alice: polo.Identity, tmp_path: Path) -> Callable[..., Any]:
    """Trains the digits task."""
    import torch

    task = polo.tasks.load("digits")

    def run(enrolment: Any, *, epochs: int = 8, each: Any = lambda *_: None, **options: Any) -> Any:
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        prover = polo.Prover(enrolment, key=alice, store=tmp_path / "proof", **options)
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for epoch in range(prover.epoch, epochs):
                for _ in range(3):  # So that every shard is well above the task's floor.
                    task.train_epoch(model, optimizer)
                prover.end_epoch()
                each(epoch, prover)
        return prover.finish()

    return run
