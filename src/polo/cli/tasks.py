"""Tasks as the command line names them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polo.tasks import Task


def load_task(name: str) -> "Task":
    """A registered task, or `module:object` from the environment or the current folder.

    The current folder is searched last, and for this one import only: what lies there must not
    stand in for a package that is not installed.
    """
    from polo import tasks

    here = str(Path.cwd())
    sys.path.append(here)
    try:
        return tasks.load(name)
    finally:
        sys.path.remove(here)
