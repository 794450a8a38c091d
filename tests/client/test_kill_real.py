"""`kill -9` of a trainer and of a real registry: the chain closes, and is what the log says."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mortal import Server, Worker, free_port
from real_registry import enrol_tiny, settings_of
from sqlalchemy import select

import polo
from polo.cli import run
from polo.client.client import Client
from polo.protocol.entries import Entry
from polo.registry.context import Registry
from polo.registry.schema import commitments
from polo.registry.settings import Settings
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome

pytestmark = pytest.mark.slow

EPOCHS = 6
MOMENTS = [
    ("POST", "/commitments", 1, "before"),  # the start
    ("POST", "/commitments", 1, "after"),  # it has its receipt, which nobody kept
    ("POST", "/uploads", 1, "after"),  # an upload that was only begun
    ("PATCH", "", 1, "before"),
    ("PATCH", "", 1, "after"),
    ("POST", "/commitments", 2, "before"),
    ("POST", "/commitments", 2, "after"),
    ("POST", "/close", 1, "before"),  # finished, not closed
    ("POST", "/close", 1, "after"),
    ("GET", "/secret", 1, "after"),
]
SERVER_KILLS = 6


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path, port=free_port())


@pytest.fixture
def server(settings: Settings, tmp_path: Path) -> Iterator[Server]:
    made = Server(settings, tmp_path / "serve.log")
    yield made
    made.close()


@pytest.fixture
def worker(
    settings: Settings, server: Server, task: Any, alice: polo.Identity, tmp_path: Path
) -> Iterator[Worker]:
    """A trainer who is enrolled there, and streams what a chain needs."""
    alice.save(tmp_path / "alice.key")
    registry = Registry.open(settings, migrate=True)
    folder = tmp_path / "enrolment"
    enrol_tiny(registry, server.url, task, alice, folder, shards=40, history="streaming")
    registry.close()
    server.start()
    made = Worker(tmp_path, {"retention": "streaming", "on_outage": "wait"})
    yield made
    made.close()


def check(settings: Settings, folder: Path, task: Any) -> None:
    """The closed chain is accepted, and the registry holds the same entries, each once."""
    manifest = ProofFolder(folder / "proof").manifest()
    assert manifest.finished
    assert len(manifest.shards) >= 2
    registry = Registry.open(settings)
    try:
        with registry.database.read() as connection:
            order = select(commitments.c.record).order_by(commitments.c.shard)
            rows = [bytes(row) for row in connection.execute(order).scalars()]
    finally:
        registry.close()
    held = [Entry.from_bytes(row, "entry").root for row in rows]
    assert held == [manifest.start.root, *(shard.root for shard in manifest.shards)]
    indices = [item.receipt.index for item in (manifest.start, *manifest.shards) if item.receipt]
    assert indices == sorted(set(indices))
    assert len(indices) == len(held)
    verdict = polo.verify(folder / "proof", trust=manifest.enrolment.issuer, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()


def test_a_trainer_killed_at_every_step_of_the_protocol(
    worker: Worker, server: Server, settings: Settings, task: Any, tmp_path: Path
) -> None:
    for number, moment in enumerate(MOMENTS):
        assert worker.order(asking=moment, epochs=EPOCHS)["killed"], moment
        if number % 3 == 2:  # And now and then the registry dies with it.
            server.kill()
            server.start()
    assert worker.order(epochs=EPOCHS) == {"killed": False, "code": 0}
    check(settings, tmp_path, task)
    with Client(server.url) as anybody:
        name = ProofFolder(tmp_path / "proof").manifest().enrolment.digest.hex()
        assert anybody.enrolment(name)["state"] == "closed"
    assert run(["log", "audit", server.url, "--proof", str(tmp_path / "proof")]) == 0


@pytest.mark.full
def test_a_registry_killed_while_a_trainer_goes_on(
    worker: Worker, server: Server, settings: Settings, task: Any, tmp_path: Path
) -> None:
    rng, over = random.Random(3), threading.Event()

    def strike() -> None:
        for _ in range(SERVER_KILLS):
            over.wait(rng.uniform(0.05, 0.5))
            server.kill()
            time.sleep(rng.uniform(0, 0.3))
            server.start()

    striker = threading.Thread(target=strike)
    striker.start()
    done = worker.order(epochs=30)
    over.set()
    striker.join(60)
    assert not striker.is_alive()
    assert done == {"killed": False, "code": 0}
    key = str(tmp_path / "alice.key")
    assert run(["submit", str(tmp_path / "proof"), "--key", key, "--no-verify"]) == 0
    check(settings, tmp_path, task)
