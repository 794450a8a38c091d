"""A stand-in registry, and a trainer that uses it."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.client.enrolled import Address, LiveEnrolment


def _load(name: str) -> Any:
    """A module beside this one, there for tests as `import name`."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


standin = _load("standin")
real_registry = _load("real_registry")
_load("mortal")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts real registries: `serve(tasks)`, with settings by name."""
    started = []

    def start(tasks: str = "", **settings: Any) -> Any:
        started.append(real_registry.Served(tmp_path, tasks, **settings))
        return started[-1]

    yield start
    for served in started:
        served.stop()


@pytest.fixture
def registry(alice: polo.Identity) -> Iterator[Any]:
    """A stand-in registry that knows alice."""
    made = standin.StandIn()
    made.identities[alice.public_key] = "Alice"
    yield made
    made.stop()


@pytest.fixture
def leave(registry: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the registry go away: until then its receipts are waited for, and no longer after."""
    monkeypatch.setattr("polo.prover.receiving.GRACE", 60.0)

    def stop() -> None:
        monkeypatch.setattr("polo.prover.receiving.GRACE", 0.1)
        registry.stop()

    return stop


@pytest.fixture
def enrolled(
    registry: Any, task: Any, alice: polo.Identity, tmp_path: Path
) -> Callable[..., LiveEnrolment]:
    """Enrols alice live for the tiny task; options go to `make_terms`."""
    from polo.evidence.receipts.rules import Rules

    def make(folder: Path = tmp_path / "enrolment", **options: Any) -> LiveEnrolment:
        rules = Rules(origin=standin.ORIGIN, log=standin.NoteKey.parse(registry.vkey, place="log"))
        settings = {"bits": 128, "shards": 12, "strength": 0.02, "budget": 1.0, **options}
        terms = polo.make_terms(task, receipts=rules, **settings)
        record = registry.enrol(terms, alice.public_key)
        return LiveEnrolment(record, Address(registry.url, standin.ORIGIN)).save(folder)

    return make


@pytest.fixture
def train(task: Any, alice: polo.Identity, tmp_path: Path) -> Callable[..., Any]:
    """Trains the tiny model under an enrolment; `each` is called after every epoch."""
    import torch

    def run(
        enrolment: Any,
        *,
        epochs: int = 3,
        store: Path = tmp_path / "proof",
        each: Callable[[int, polo.Prover], None] = lambda *_: None,
        finish: bool = True,
        wait: float = 20.0,
        **options: Any,
    ) -> Any:
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        prover = polo.Prover(enrolment, key=alice, store=store, **options)
        try:
            with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
                for epoch in range(prover.epoch, epochs):
                    task.train_epoch(model, optimizer)
                    prover.end_epoch()
                    each(epoch, prover)
            return prover.finish(wait=wait) if finish else prover
        finally:
            if finish:
                prover.close()

    return run
