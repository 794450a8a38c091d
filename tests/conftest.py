"""What the tests share: a tiny task, identities, and finished proofs."""

import contextlib
import os
import random
import secrets

# One thread: tiny matrices are faster so, and other work on the machine disturbs less.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import polo
from polo.protocol import nonces, signing
from polo.protocol.records import Enrolment
from polo.tasks.training import Column


def tiny_model() -> Any:
    """Three layers, 21 blocks of 256 weights, and buffers (one of them an integer)."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(16, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
    )


class TinyTask:
    """Four clouds of points; has all interfaces of a task and trains in milliseconds."""

    name = "tiny"
    version = 1
    metric = "accuracy"
    floor = (0.15,)
    columns: tuple[Column, ...] = (Column("label", "I64", ()), Column("point", "F32", (16,)))

    def __init__(self, build: Callable[[], Any] = tiny_model) -> None:
        self.build_model = build

    @cached_property
    def _points(self) -> tuple[Any, Any]:
        import torch

        generator = torch.Generator().manual_seed(7)
        centres = torch.randn(4, 16, generator=generator) * 0.7
        labels = torch.arange(384) % 4
        return centres[labels] + torch.randn(384, 16, generator=generator), labels

    def batches(self, size: int = 32) -> list[tuple[Any, Any]]:
        """Training points in an order that torch's global generator decides."""
        import torch

        points, labels = (part[:256] for part in self._points)
        return [(points[at], labels[at]) for at in torch.randperm(256).split(size)]

    def train_columns(self) -> dict[str, Any]:
        """The points that training sees, as arrays."""
        points, labels = (part[:256].numpy() for part in self._points)
        return {"label": labels, "point": points}

    def train_step(self, model: Any, optimizer: Any, batch: Mapping[str, Any]) -> None:
        """One step on a batch of points."""
        from torch.nn.functional import cross_entropy

        device = next(model.parameters()).device
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(batch["point"].to(device)), batch["label"].to(device)).backward()
        optimizer.step()

    def train_epoch(self, model: Any, optimizer: Any) -> None:
        """Eight steps."""
        for points, labels in self.batches():
            self.train_step(model, optimizer, {"label": labels, "point": points})

    def held_out_loss(self, model: Any) -> Any:
        """Mean loss on the points that training never sees, differentiable."""
        from torch.nn.functional import cross_entropy

        points, labels = (part[256:] for part in self._points)
        training = model.training
        model.eval()
        device = next(model.parameters()).device
        loss = cross_entropy(model(points.to(device)), labels.to(device))
        model.train(training)
        return loss

    def evaluate(self, model: Any) -> float:
        """Accuracy on the points that training never sees."""
        import torch

        points, labels = (part[256:] for part in self._points)
        training = model.training
        model.eval()
        with torch.no_grad():
            right = (model(points).argmax(1) == labels).double().mean()
        model.train(training)
        return float(right)


@dataclass(frozen=True)
class Made:
    """A proof that `make_proof` made, and everything it was made with."""

    proof: Any
    path: Path
    enrolment: polo.OfflineEnrolment
    task: TinyTask
    model: Any
    optimizer: Any
    issuer: polo.Identity

    @property
    def manifest(self) -> Any:
        """What the proof says."""
        return self.proof.manifest

    @property
    def state_path(self) -> Path:
        """What the prover keeps for itself."""
        return self.path.with_name(self.path.name + ".state")

    def verify(self, **options: Any) -> polo.Verdict:
        """Check the proof as a buyer would who trusts the issuer."""
        return polo.verify(self.path, trust=self.issuer.public_key, task=self.task, **options)


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test draws in its own process is the same in every run of it.

    Marks follow keys, nonces and noise, all of them drawn: without this every run would train with
    other marks, and one in some hundreds cannot seal an epoch.
    """
    with _drawn_by(request.node.nodeid):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """The same for what several tests share, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    shared = request.node.nodeid, fixturedef.argname, getattr(request, "param_index", 0)
    with _drawn_by(repr(shared)):
        return (yield)


@contextlib.contextmanager
def _drawn_by(name: str) -> Iterator[None]:
    """Bytes and identities are drawn from a name in this process, and as ever in others."""
    drawing, process = random.Random(name), os.getpid()
    outside = secrets.token_bytes

    def token_bytes(size: int | None = None) -> bytes:
        if os.getpid() != process:
            return outside(size)
        return drawing.randbytes(secrets.DEFAULT_ENTROPY if size is None else size)

    def generate(cls: type[polo.Identity]) -> polo.Identity:
        return cls(Ed25519PrivateKey.from_private_bytes(token_bytes(32)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", token_bytes)
        patch.setattr(polo.Identity, "generate", classmethod(generate))
        yield


@pytest.fixture(scope="session")
def task() -> TinyTask:
    """The tiny task."""
    return TinyTask()


def identity(number: int) -> polo.Identity:
    """The same key in every run, so that the same marks are drawn."""
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


@pytest.fixture(scope="session")
def alice() -> polo.Identity:
    """A prover."""
    return identity(1)


@pytest.fixture(scope="session")
def bob() -> polo.Identity:
    """One who buys from alice."""
    return identity(3)


@pytest.fixture(scope="session")
def carol() -> polo.Identity:
    """One who buys from bob."""
    return identity(4)


@pytest.fixture(scope="session")
def issuer() -> polo.Identity:
    """Whoever fixes the terms."""
    return identity(2)


@pytest.fixture
def enrol(
    task: TinyTask, alice: polo.Identity, issuer: polo.Identity
) -> Callable[..., polo.OfflineEnrolment]:
    """Enrols alice for the tiny task, or for `task=…`; options go to `make_terms`.

    Like `polo.enrol`, but the nonces are the same in every run of a test.
    """
    drawing = random.Random(0)

    def make(**options: Any) -> polo.OfflineEnrolment:
        subject = options.pop("task", task)
        terms = polo.make_terms(subject, **{"bits": 128, "shards": 12, "strength": 0.02, **options})
        commitment, drawn = nonces.draw(terms.shards.most, drawing.randbytes)
        record = Enrolment(terms, alice.public_key, commitment, 1_700_000_000, issuer.public_key)
        return polo.OfflineEnrolment(signing.sign(record, issuer), drawn)

    return make


@pytest.fixture
def make_proof(
    tmp_path: Path,
    task: TinyTask,
    alice: polo.Identity,
    issuer: polo.Identity,
    enrol: Callable[..., polo.OfflineEnrolment],
) -> Callable[..., Made]:
    """Trains the tiny model and returns a finished proof; options go to `Prover`."""
    import torch

    def make(
        path: Path = tmp_path / "proof",
        *,
        epochs: int = 3,
        seed: int = 0,
        terms: dict[str, Any] | None = None,
        task: TinyTask = task,
        **options: Any,
    ) -> Made:
        enrolment = enrol(task=task, **(terms or {}))
        torch.manual_seed(seed)
        model = task.build_model()
        if enrolment.record.terms.start.kind == "derived":
            polo.draw_start(model, enrolment)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        prover = polo.Prover(enrolment, key=alice, store=path, **options)
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for _ in range(epochs):
                task.train_epoch(model, optimizer)
                prover.end_epoch()
        return Made(prover.finish(), path, enrolment, task, model, optimizer, issuer)

    return make


@dataclass(frozen=True)
class Owned:
    """A proof of a bought model, and how it came to its owner."""

    made: Made
    key: polo.Identity
    seller: Path
    transfer: Any

    @property
    def path(self) -> Path:
        """The buyer's proof."""
        return self.made.path


@pytest.fixture
def buy(task: TinyTask, issuer: polo.Identity) -> Callable[..., Owned]:
    """Fine-tunes the model that a proof ends in, and hands it over unless `seller_key` is None."""
    import torch

    from polo.storage import transfers

    drawing = random.Random(1)

    def make(
        path: Path,
        key: polo.Identity,
        *,
        seller: Path,
        seller_key: polo.Identity | None,
        epochs: int = 1,
        terms: dict[str, Any] | None = None,
        **options: Any,
    ) -> Owned:
        model = task.build_model()
        settings = {"bits": 128, "shards": 12, "strength": 0.02, **(terms or {})}
        settings = {"parent": polo.load_weights(model, seller), **settings}
        agreed = polo.make_terms(task, **settings)
        commitment, drawn = nonces.draw(agreed.shards.most, drawing.randbytes)
        record = Enrolment(agreed, key.public_key, commitment, 1_710_000_000, issuer.public_key)
        enrolment = polo.OfflineEnrolment(signing.sign(record, issuer), drawn)
        torch.manual_seed(len(path.name))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        prover = polo.Prover(enrolment, key=key, store=path, **options)
        with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
            for _ in range(epochs):
                task.train_epoch(model, optimizer)
                prover.end_epoch()
        made = Made(prover.finish(), path, enrolment, task, model, optimizer, issuer)
        given = None
        if seller_key is not None:
            asked = transfers.request(path, seller, key)
            given = transfers.sign(asked, seller, seller_key)
            transfers.complete(path, given, seller, key)
        return Owned(made, key, seller, given)

    return make


@pytest.fixture(scope="session")
def in_child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a fresh Python; this file is there as `shared`, arguments as `sys.argv[1:]`."""
    prelude = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('shared', {__file__!r})\n"
        "shared = importlib.util.module_from_spec(spec)\n"
        "sys.modules['shared'] = shared\n"
        "spec.loader.exec_module(shared)\n"
    )

    def run(code: str, *arguments: object, bare: bool = False) -> Any:
        source = code if bare else prelude + code
        command = [sys.executable, "-W", "error", "-c", source, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done

    run.prelude = prelude
    return run


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    """Waits until something is so, at most so many seconds."""

    def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)

    return wait


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Tests in `gpu` are collected only where there is one, so that they never count as skipped."""
    if collection_path.name != "gpu":
        return None
    import torch

    return None if torch.cuda.is_available() else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is long comes last."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A skipped test fails the run where CI is set: there everything must be installed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and exitstatus == 0 and reporter and reporter.stats.get("skipped"):
        reporter.write_line("tests were skipped, which CI does not accept", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
