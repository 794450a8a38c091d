"""Every example runs as a newcomer would run it, and ends in acceptance."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "common.py")

LONG = ("accelerate", "amp", "compiled", "ema", "lightning", "opacus", "replay", "resume",
        "transformers", "verify", "whose")  # fmt: skip
"""What these show, tests of integrations, loops, released weights, replay and guides show, too."""

pytestmark = pytest.mark.slow


def some_full(names: list[str]) -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.full) if name.startswith(LONG) else name
        for name in names
    ]


@pytest.mark.parametrize("name", some_full(SCRIPTS))
def test_example(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ACCEPTED" in done.stdout


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in SCRIPTS if f"`{name}`" not in listed] == []
