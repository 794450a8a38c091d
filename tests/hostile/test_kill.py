"""`kill -9` at any instant: no sealed shard is lost, and the resumed run's proof verifies."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.storage.folder import ProofFolder
from polo.verifier import Outcome

KILLS = 10
pytestmark = pytest.mark.slow

OPTIONS = [
    pytest.param({}, id="all", marks=pytest.mark.full),
    pytest.param({"retention": 3, "deltas": True}, id="every-3-deltas"),
    pytest.param({"retention": "thin"}, id="thin"),
]


class Crashes:
    """A folder with an enrolment, and a worker that trains in children that die."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        here = Path(__file__).parent
        command = [sys.executable, str(here / "crash_worker.py"), str(folder)]
        command += [str(here.parent), json.dumps(options)]
        self._worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == {"ready": True}

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._worker.stdin
        self._worker.stdin.write(json.dumps(order) + "\n")
        self._worker.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._worker.stdout
        answer: dict[str, Any] = json.loads(self._worker.stdout.readline())
        return answer

    def sealed(self) -> dict[int, str]:
        """Shards that a child saw sealed before it died; a torn last line does not count."""
        log = self.folder / "sealed.log"
        lines = log.read_text().splitlines() if log.exists() else []
        whole = [line.split() for line in lines]
        return {int(number): root for number, root in whole if len(root) == 64}

    def check_nothing_lost(self) -> int:
        seen = self.sealed()
        if not seen:
            return 0
        shards = ProofFolder(self.folder / "proof").manifest().shards
        found = {shard.shard: shard.root.hex() for shard in shards}
        assert found.items() >= seen.items()
        return len(shards)

    def close(self) -> None:
        assert self._worker.stdin
        self._worker.stdin.close()
        self._worker.wait(timeout=60)
        assert self._worker.stdout
        self._worker.stdout.close()


@pytest.fixture(params=OPTIONS)
def crashes(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    alice: polo.Identity,
    enrol: Callable[..., polo.OfflineEnrolment],
) -> Iterator[Crashes]:
    alice.save(tmp_path / "alice.key")
    enrol(shards=400).save(tmp_path / "enrolment")
    crashes = Crashes(tmp_path, request.param)
    yield crashes
    crashes.close()


def test_killed_at_random_instants(crashes: Crashes, issuer: polo.Identity, task: Any) -> None:
    seed = int(os.environ.get("POLO_TEST_SEED", "25"))
    print(f"seed {seed}")
    rng = random.Random(seed)
    killed = 0
    for _ in range(KILLS):
        answer = crashes.order(after=rng.uniform(0.02, 0.5))
        assert answer["killed"] or answer["code"] == 0
        killed += answer["killed"]
        crashes.check_nothing_lost()
    assert killed >= KILLS - 1
    finish_and_verify(crashes, issuer, task)


def test_killed_at_every_touch_of_the_disk(
    crashes: Crashes, issuer: polo.Identity, task: Any
) -> None:
    """Each child gets a little further than the one before, through begin, seal and finish."""
    for at in range(1, 60, 2):
        assert crashes.order(at=at) == {"killed": True, "code": None}
        crashes.check_nothing_lost()
    finish_and_verify(crashes, issuer, task)


def finish_and_verify(crashes: Crashes, issuer: polo.Identity, task: Any) -> None:
    before = crashes.check_nothing_lost()
    assert crashes.order(epochs=before + 4) == {"killed": False, "code": 0}
    assert crashes.check_nothing_lost() >= max(before, 4)
    proof = crashes.folder / "proof"
    assert ProofFolder(proof).manifest().finished
    verdict = polo.verify(proof, trust=issuer.public_key, task=task)
    assert verdict.outcome is Outcome.ACCEPTED, verdict.headline()
