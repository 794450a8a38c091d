"""The guide to ownership, pasted command by command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "ownership.md"
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_guide_can_be_pasted_in_order(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "POLO_TRUST": str(tmp_path / "trust"),
    }

    def run(*command: str, at: Path) -> None:
        done = subprocess.run(
            command, cwd=at, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"

    run("polo", "quickstart", at=tmp_path)
    blocks = BLOCK.findall(GUIDE.read_text(encoding="utf-8"))
    assert {language for language, _ in blocks} == {"", "python"}
    for language, text in blocks:
        command = [sys.executable, "-c"] if language else ["bash", "-ec"]
        run(*command, text, at=tmp_path / "polo-quickstart")
