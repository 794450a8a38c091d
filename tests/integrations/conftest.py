"""What the tests of all frameworks share: a folder to train in, and scripts to be killed."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import polo

EASY = {"budget": 1.0, "strength": 0.05, "bits": 64}
MASTER = bytes(range(32))


@dataclass(frozen=True)
class Site:
    """A folder with an enrolment and a key, as scripts find it."""

    folder: Path
    task: Any
    issuer: polo.Identity

    @property
    def proof(self) -> Path:
        """The proof folder."""
        return self.folder / "proof"

    @property
    def manifest(self) -> Any:
        """What the proof says now."""
        return json.loads((self.proof / "manifest.json").read_bytes())

    @property
    def steps(self) -> list[int]:
        """Steps of each sealed shard."""
        return [shard["steps"] for shard in self.manifest["shards"]]

    @property
    def root(self) -> str:
        """Root of the last shard."""
        return str(self.manifest["shards"][-1]["root"])

    def killed(self, worker: ModuleType, *arguments: object) -> None:
        """Run a script in a process of its own, which must be killed."""
        assert worker.__file__ is not None
        command = [sys.executable, worker.__file__, str(self.folder), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == -9, done.stdout + done.stderr

    def accepted(self) -> bool:
        """Whether a buyer would accept the proof."""
        verdict = polo.verify(self.proof, trust=self.issuer.public_key, task=self.task)
        assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
        return True


@pytest.fixture
def make_site(
    tmp_path: Path, task: Any, alice: polo.Identity, issuer: polo.Identity, enrol: Any
) -> Callable[..., Site]:
    """Makes folders; all under one enrolment and one secret, so that runs can be compared."""
    terms: dict[str, Any] = {}

    def make(name: str = "site", **options: Any) -> Site:
        folder = tmp_path / name
        (folder / "proof.state").mkdir(parents=True, mode=0o700)
        (folder / "proof.state" / "secret").write_bytes(MASTER)
        key = repr(sorted(options.items()))
        if key not in terms:
            terms[key] = enrol(**{**EASY, **options})
        terms[key].save(folder / "enrolment")
        alice.save(folder / "alice.key")
        return Site(folder, task, issuer)

    return make


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """One folder."""
    return make_site()


def load(name: str) -> ModuleType:
    """A script beside this file, as a module."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"polo_tests_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trainer_script() -> ModuleType:
    """The script that trains with Transformers."""
    return load("trainer_script")


@pytest.fixture(scope="session")
def lightning_script() -> ModuleType:
    """The script that trains with Lightning."""
    return load("lightning_script")


@pytest.fixture(scope="session")
def accelerate_script() -> ModuleType:
    """The script that trains with Accelerate."""
    return load("accelerate_script")
