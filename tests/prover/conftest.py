"""Runs that tests do something to under way, on stores that must survive it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.storage.folder import ProofFolder


def _load(name: str) -> Any:
    """A module beside this one, there for tests as `import name`."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_script = _load("training_script")
EASY, Enrol, Run = _script.EASY, _script.Enrol, _script.Run


@pytest.fixture
def run(
    task: Any, enrol: Enrol, alice: polo.Identity, issuer: polo.Identity, tmp_path: Path
) -> Any:
    """A run with two sealed shards; whatever a test does to it, the store must survive it."""
    begun = Run(task, enrol(**EASY), alice, tmp_path / "proof")
    begun.attach()
    for _ in range(2):
        assert begun.epoch().sealed
    sealed = ProofFolder(begun.path).manifest().shards
    yield begun
    following = begun.again()
    kept = ProofFolder(begun.path).manifest().shards
    assert kept[:2] == sealed
    with following.attach():
        assert following.prover.epoch == sum(shard.epochs for shard in kept)
        for _ in range(2):
            assert following.epoch().sealed
    assert following.prover.finish().shards == len(kept) + 2
    verdict = polo.verify(begun.path, trust=issuer.public_key, task=task)
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()


@pytest.fixture
def loose(task: Any, enrol: Enrol, alice: polo.Identity, tmp_path: Path) -> Any:
    """A run that a test may finish itself."""
    begun = Run(task, enrol(**EASY), alice, tmp_path / "proof")
    begun.attach()
    yield begun
    begun.prover.close()
