"""Exact across processes on a GPU: trained in two, answered in a third, verified in a fourth."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parents[1] / "evidence" / "replay_worker.py"


@pytest.mark.parametrize("model", ["tiny", "resnet"])
def test_trained_resumed_answered_and_verified_in_four_processes(
    model: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "error", str(WORKER), str(tmp_path), str(WORKER.parents[1])]
    command += [model, "cuda"]

    def work(order: dict[str, Any]) -> Any:
        done = subprocess.run(
            command, input=json.dumps(order) + "\n", capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert work({"train": 1}) == {"shards": 1}
    assert work({"train": 3}) == {"shards": 3}
    answer, verdict = work({"answer": True}), work({"verify": True})
    assert verdict["said"].startswith("ACCEPTED"), verdict["said"]
    assert verdict["figures"]["exact"] == verdict["figures"]["run"] == answer["answered"] >= 9
