"""Running the `polo` command of this environment in a process of its own."""

import subprocess
import sys
import sysconfig
from pathlib import Path

ABSENT = "the polo command is not installed in this environment"


def polo() -> Path | None:
    """The command, if it is installed beside this Python."""
    found = Path(sysconfig.get_path("scripts")) / "polo"
    return found if found.exists() else None


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run this Python with some arguments."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
