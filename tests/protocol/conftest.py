"""What the tests of the protocol share: the vectors, and a second reader to compare with."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of the vectors."""
    return VECTORS


@pytest.fixture(scope="session")
def vector() -> Callable[[str], Any]:
    """Reads one vector file by name."""
    return lambda name: json.loads((VECTORS / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def second() -> Any:
    """A reader that follows the specification and shares no code with the library."""
    return load(Path(__file__).with_name("second_reader.py"))


@pytest.fixture(scope="session")
def golden_task() -> Any:
    """The task of the golden proofs."""
    return load(VECTORS / "golden_task.py").GoldenDigits()
