"""Examples that say so go on where they were killed, when they are run again."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FULL = pytest.mark.full  # The same, in frameworks that take longer to start.

pytestmark = pytest.mark.slow


def sealed(proof: Path) -> list[str]:
    """Roots of the shards that a proof holds so far."""
    path = proof / "manifest.json"
    shards = json.loads(path.read_bytes())["shards"] if path.exists() else []
    return [str(shard["root"]) for shard in shards]


CASES = {
    "accelerate_loop.py": "accelerate/epoch-0",
    "lightning_loop.py": "lightning/last.ckpt",
    "opacus_loop.py": "opacus.pt",
    "transformers_trainer.py": "trainer/*/trainer_state.json",
}
"""Scripts, and what tells that the framework has saved its first checkpoint."""


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        pytest.param(name, saved, marks=() if name.startswith("accelerate") else FULL, id=name)
        for name, saved in CASES.items()
    ],
)
def test_killed_after_its_first_checkpoint_it_goes_on(
    name: str, saved: str, tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    kill_and_run(name, tmp_path, lambda: any(tmp_path.glob(saved)), wait_for)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_killed_as_soon_as_its_first_shard_is_sealed_it_goes_on(
    name: str, tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    """Mostly before the framework has saved anything, or while it does."""
    kill_and_run(name, tmp_path, lambda: True, wait_for)


def kill_and_run(
    name: str, folder: Path, ready: Callable[[], bool], wait_for: Callable[..., None]
) -> None:
    """Kill an example once it is ready and has sealed a shard, and run it again."""
    command = [sys.executable, str(EXAMPLES / name), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        try:
            wait_for(
                lambda: (sealed(folder / "proof") and ready()) or first.poll() is not None, 200.0
            )
        finally:
            first.kill()
    assert first.returncode == -9
    before = sealed(folder / "proof")
    assert before
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ACCEPTED" in done.stdout
    after = sealed(folder / "proof")
    assert after[: len(before)] == before
    assert len(after) > len(before)
