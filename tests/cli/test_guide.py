"""The guides, pasted command by command."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Run = Callable[..., None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a quickstart leaves behind."""
    place = tmp_path_factory.mktemp("guides")
    run_in(place)("polo", "quickstart")
    return place / "polo-quickstart"


def run_in(folder: Path) -> Run:
    """Runs commands as somebody does who has PoLO on the path and trusts nobody yet."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "POLO_TRUST": str(folder / "trust"),
    }

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"

    return run


@pytest.mark.full
@pytest.mark.parametrize("guide", ["ownership.md", "effort.md"])
def test_a_guide_can_be_pasted_in_order(guide: str, folder: Path) -> None:
    text = (DOCS / guide).read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert {language for language, _ in blocks} == {"", "python"}
    assert len(blocks) * 2 == len(re.findall("^ *```", text, re.MULTILINE))
    for language, block in blocks:
        command = [sys.executable, "-c"] if language else ["bash", "-ec"]
        run_in(folder)(*command, block)
