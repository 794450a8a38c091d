"""Exact across processes on a GPU: trained in two, answered in a third, verified in a fourth."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parents[1] / "evidence" / "replay_worker.py"


@pytest.mark.parametrize(
    ("model", "kernels"), [("tiny", "any"), ("resnet", "any"), ("resnet", "repeating")]
)
def test_trained_resumed_answered_and_verified_in_four_processes(
    model: str, kernels: str, tmp_path: Path
) -> None:
    """With kernels that cuDNN chooses freely, as with those that repeat by its word."""
    command = [sys.executable, "-W", "error", str(WORKER), str(tmp_path), str(WORKER.parents[1])]
    command += [model, "cuda", kernels]

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
