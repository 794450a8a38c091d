"""`kill -9` of a trainer who talks to a registry: every receipt comes again, as it was."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mortal import Worker

import polo
from polo.client.enrolled import LiveEnrolment
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome

pytestmark = pytest.mark.slow

KILLS = 12


@pytest.fixture(params=[pytest.param("all", marks=pytest.mark.full), "streaming"])
def worker(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    alice: polo.Identity,
    enrolled: Callable[..., LiveEnrolment],
    registry: Any,
) -> Iterator[Worker]:
    alice.save(tmp_path / "alice.key")
    enrolled(shards=60, history="streaming" if request.param == "streaming" else None)
    registry.asks = {3, 4, 7}
    worker = Worker(tmp_path, {"retention": request.param, "on_outage": "wait"})
    yield worker
    worker.close()


def check_log(registry: Any, proof: Path) -> int:
    """What the store holds is what the log holds, to the byte."""
    if not (proof / "manifest.json").exists():
        return 0
    manifest = ProofFolder(proof).manifest()
    chain = registry.chains[manifest.enrolment.digest.hex()]
    noted = [json.loads(entry)["shard"] for entry in chain[1:]]
    roots = [shard.root.hex() for shard in manifest.shards]
    assert [shard["root"] for shard in noted] == roots[: len(noted)]
    assert len(noted) >= len(roots) - 1
    for number, shard in enumerate(manifest.shards[:-1], start=1):
        assert shard.receipt is not None
        assert shard.receipt.shard == number
    return len(roots)


def test_killed_at_every_touch_of_the_disk(
    worker: Worker, registry: Any, tmp_path: Path, task: Any
) -> None:
    for at in range(1, 50, 3):
        answer = worker.order(at=at, epochs=40)
        assert answer["killed"]
        check_log(registry, tmp_path / "proof")
    finish(worker, registry, tmp_path, task)


@pytest.mark.full
def test_killed_at_random_instants(
    worker: Worker, registry: Any, tmp_path: Path, task: Any
) -> None:
    rng = random.Random(7)
    for _ in range(KILLS):
        worker.order(after=rng.uniform(0.02, 0.6), epochs=400)  # More than it can do in time.
        check_log(registry, tmp_path / "proof")
    finish(worker, registry, tmp_path, task)


def finish(worker: Worker, registry: Any, folder: Path, task: Any) -> None:
    before = check_log(registry, folder / "proof")
    assert worker.order(epochs=before + 3) == {"killed": False, "code": 0}
    manifest = ProofFolder(folder / "proof").manifest()
    assert manifest.finished
    assert len(manifest.shards) >= before + 1
    assert registry.manifests[manifest.enrolment.digest.hex()] == manifest.to_bytes()
    verdict = polo.verify(folder / "proof", trust=registry.issuer.public_key, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
