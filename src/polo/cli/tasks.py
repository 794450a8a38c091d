"""Tasks as the command line names them."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polo.tasks import Task


def load_task(name: str) -> "Task":
    """A registered task, or `module:object` from the environment or the current folder.

    The current folder never goes onto the import path: a proof may lie there, with files that
    would stand in for packages that are not installed. Only the named module is taken from it.
    """
    from polo import tasks

    module = name.partition(":")[0].partition(".")[0]
    if ":" in name and module not in sys.modules and importlib.util.find_spec(module) is None:
        _take_from_here(module)
    return tasks.load(name)


def _take_from_here(module: str) -> None:
    """Import one module of the current folder, if it is there."""
    file, package = Path.cwd() / f"{module}.py", Path.cwd() / module / "__init__.py"
    found = next((path for path in (file, package) if path.is_file()), None)
    if found is None:
        return
    folders = [str(package.parent)] if found == package else None
    spec = importlib.util.spec_from_file_location(module, found, submodule_search_locations=folders)
    assert spec
    assert spec.loader
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException:
        del sys.modules[module]
        raise
