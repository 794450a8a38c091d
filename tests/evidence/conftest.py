"""What the tests of evidence share: models and steps of all sorts, and proofs under replay."""

import hashlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import polo
from polo.evidence.replay import answer as answers
from polo.evidence.replay.data import DataSource
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import Boundary, Record, load
from polo.evidence.replay.recorder import Recorder
from polo.evidence.replay.state import Snapshot, moves, named_state, state_digests, trained_names
from polo.protocol import nonces, signing
from polo.protocol.challenge import Answer, Challenge, Place
from polo.protocol.digest import tagged
from polo.protocol.records import Enrolment, File, Manifest
from polo.storage.folder import MANIFEST_FILE, ProofFolder, evidence_path, state_path_of
from polo.verifier import Outcome, Policy, Status

collect_ignore = ["replay_worker.py"]  # It runs in processes of its own.


class Tied(nn.Module):
    """A tiny language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 8)
        self.head = nn.Linear(8, 24, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.embedding(x)))
        return found


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def buffered() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.2), nn.Flatten(), nn.Linear(216, 4)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "plain": (plain, lambda: torch.randn(5, 8)),
    "buffers": (buffered, lambda: torch.randn(5, 1, 8, 8)),
    "channels last": (
        lambda: buffered().to(memory_format=torch.channels_last),
        lambda: torch.randn(5, 1, 8, 8),
    ),
    "tied": (Tied, lambda: torch.randint(0, 24, (5, 6))),
    "bf16": (lambda: plain().to(torch.bfloat16), lambda: torch.randn(5, 8, dtype=torch.bfloat16)),
    "wrapped": (lambda: nn.DataParallel(plain()), lambda: torch.randn(5, 8)),
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.05),
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": partial(Adam, lr=0.01),
    "adamw": partial(AdamW, lr=0.01, amsgrad=True),
    "fused": partial(AdamW, lr=0.01, fused=True),
}


@dataclass
class Run:
    """A model in training."""

    model: nn.Module
    optimizer: Optimizer
    draw: Callable[[], torch.Tensor]

    def step(self) -> None:
        """One step of training, on a batch that torch's global generator decides."""
        self.optimizer.zero_grad()
        self.model(self.draw()).float().pow(2).mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> "Run":
        """Several steps."""
        for _ in range(count):
            self.step()
        return self

    def copies(self) -> Snapshot:
        """Copies of the state."""
        model, rest = (
            {name: value.detach().clone() for name, value in part.items()}
            for part in named_state(self.model, self.optimizer)
        )
        return model, rest

    def moves(self, before: Snapshot, after: Snapshot) -> tuple[int, int]:
        """How far the state moved between two copies."""
        names = trained_names(self.model)
        both = (({name: model[name] for name in names}, rest) for model, rest in (before, after))
        return moves(*both)

    def digests(self) -> Boundary:
        """Digests of the state."""
        return Boundary(*state_digests(self.model, self.optimizer))

    def record(self, recorder: Recorder, steps: int) -> None:
        """Several steps, recorded."""
        for _ in range(steps):
            self.step()
            recorder.after_step()


def recording_threads() -> list[threading.Thread]:
    """Threads that recorders have."""
    names = ("polo-recorder", "ThreadPoolExecutor")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


@pytest.fixture
def threads() -> Callable[[], list[threading.Thread]]:
    """Says which threads recorders have."""
    return recording_threads


@pytest.fixture
def recorder() -> Iterator[Callable[..., Recorder]]:
    """Makes recorders that are abandoned at the end."""
    made: list[Recorder] = []

    def make(run: Run, every: int = 3) -> Recorder:
        made.append(Recorder(run.model, run.optimizer, every))
        return made[-1]

    yield make
    for one in made:
        one.abandon()
    assert not recording_threads()


@pytest.fixture
def begin() -> Callable[..., Run]:
    """Begins a run, always the same for the same names."""

    def make(model: str = "buffers", optimizer: str = "momentum", **options: Any) -> Run:
        torch.manual_seed(3)
        build, draw = MODELS[model]
        built = build()
        return Run(built, OPTIMIZERS[optimizer](built.parameters(), **options), draw)

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that ask for `kind` see every model with momentum, and every optimizer."""
    if "kind" in metafunc.fixturenames:
        kinds = [(model, "momentum") for model in MODELS]
        kinds += [("buffers", optimizer) for optimizer in OPTIMIZERS if optimizer != "momentum"]
        kinds += [("tied", "adamw"), ("bf16", "adam")]
        metafunc.parametrize("kind", kinds, ids=" ".join)


@dataclass(frozen=True)
class Trained:
    """A proof under level replay, and everything it was made with."""

    path: Path
    task: Any
    source: DataSource
    recipe: Recipe
    key: polo.Identity
    issuer: polo.Identity

    @property
    def manifest(self) -> Manifest:
        """What the proof says."""
        return ProofFolder(self.path).manifest()

    def everything(self, *, ends: bool = False) -> Challenge:
        """A challenge that asks for every segment and every sealing: the same in every run."""
        shards = self.manifest.shards
        places = [
            Place(shard.shard, segment)
            for shard in shards
            for segment in range(self.recipe.segments(shard.steps))
        ]
        numbers = tuple(shard.shard for shard in shards)
        return Challenge(self.manifest.digest, tuple(places), numbers, ends, 1_700_000_000)

    def answer(self, challenge: Challenge, out: Path, **options: Any) -> Path:
        """The prover's answer."""
        means = {"task": self.task, "data": self.source, "key": self.key, **options}
        return answers.answer(self.path, challenge, out=out, **means)

    def verify(
        self, challenge: Challenge | None = None, answer: Path | None = None, **options: Any
    ) -> polo.Verdict:
        """Check the proof as a buyer would who trusts the issuer."""
        asked = {"task": self.task, "policy": Policy("none"), **options}
        return polo.verify(
            self.path, trust=self.issuer.public_key, challenge=challenge, answer=answer, **asked
        )

    def replayed(self, folder: Path, *, ends: bool = False) -> polo.Verdict:
        """Ask for everything, answer, verify."""
        challenge = self.everything(ends=ends)
        return self.verify(challenge, self.answer(challenge, folder))

    def copied(self, folder: Path) -> "Trained":
        """The same proof once more, to be changed; what is private comes along."""
        shutil.copytree(self.path, folder / "proof")
        shutil.copytree(state_path_of(self.path), folder / "proof.state")
        return replace(self, path=folder / "proof")

    def sign(self, manifest: Manifest) -> None:
        """Sign a changed manifest, as the prover can."""
        signed = signing.sign(manifest, self.key).to_bytes()
        (self.path / MANIFEST_FILE).write_bytes(signed)

    def resign(self, answer: Path, **fields: Any) -> None:
        """Change the signed part of an answer, and sign it; with `key` as somebody else."""
        key = fields.pop("key", self.key)
        record = Answer.from_bytes((answer / "answer.json").read_bytes(), "answer")
        signed = signing.sign(replace(record, **fields), key)
        (answer / "answer.json").write_bytes(signed.to_bytes())

    def record(self, shard: int) -> Record:
        """The record of a shard."""
        steps = self.manifest.shards[shard - 1].steps
        name = evidence_path("replay", shard)
        return load(self.path / name, self.recipe.segments(steps), name)

    def rewrite(self, shard: int, data: bytes, digest: bytes | None = None) -> None:
        """Put another file in the place of a record, and sign for it."""
        name, manifest = evidence_path("replay", shard), self.manifest
        (self.path / name).write_bytes(data)
        digest = tagged("polo/replay-record/1", data) if digest is None else digest
        shards = tuple(
            replace(each, evidence={"replay": digest}) if each.shard == shard else each
            for each in manifest.shards
        )
        file = File(name, len(data), hashlib.sha256(data).digest())
        files = tuple(file if each.path == name else each for each in manifest.files)
        self.sign(replace(manifest, shards=shards, files=files))


def plain_loop(run: Any) -> None:
    """One epoch as the task does it."""
    for numbers in run.prover.sampler:
        run.task.train_step(run.model, run.optimizer, run.source.batch(numbers))


@dataclass
class Training:
    """A run under level replay, in progress."""

    task: Any
    source: DataSource
    model: Any
    optimizer: Any
    prover: polo.Prover

    def epochs(self, count: int, loop: Callable[[Any], None] = plain_loop) -> None:
        """Train and seal so many times."""
        with self.prover.attach(
            self.model, self.optimizer, evaluate=lambda: self.task.evaluate(self.model)
        ):
            for _ in range(count):
                loop(self)
                self.prover.end_epoch()


@pytest.fixture(scope="session")
def recipe_of() -> Callable[..., Recipe]:
    """A recipe for the tiny task's 256 samples: an epoch is 8 steps, in segments of 3, 3 and 2."""

    def make(**options: Any) -> Recipe:
        usual = {"samples": 256, "batch": 32, "every": 3, "draws": 3, "top": 1, "seals": 1}
        usual["tolerance"] = 20_000  # Some tests are about other platforms.
        return Recipe(**{**usual, **options})

    return make


@pytest.fixture(scope="session")
def training(
    task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
    recipe_of: Callable[..., Recipe],
) -> Callable[..., Training]:
    """Begins a run in a folder, or goes on with the one that is there."""

    def make(
        path: Path,
        *,
        task: Any = task,
        recipe: Recipe | None = None,
        terms: dict[str, Any] | None = None,
        **options: Any,
    ) -> Training:
        recipe = recipe or recipe_of()
        source = DataSource(task.train_columns(), secret=bytes(range(32)))
        settings = {"bits": 128, "shards": 6, "strength": 0.02, "start": "derived", **(terms or {})}
        agreed = polo.make_terms(task, replay=recipe, data=source.root, **settings)
        commitment, drawn = nonces.draw(agreed.shards.most, random.Random(0).randbytes)
        record = Enrolment(agreed, alice.public_key, commitment, 1_700_000_000, issuer.public_key)
        enrolment = polo.OfflineEnrolment(signing.sign(record, issuer), drawn)
        torch.manual_seed(0)
        model = task.build_model()
        if agreed.start.kind == "derived":
            polo.draw_start(model, enrolment)
        prover = polo.Prover(enrolment, key=alice, store=path, **{"data": source, **options})
        return Training(task, source, model, recipe.optimizer(model), prover)

    return make


@pytest.fixture(scope="session")
def train(
    task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
    recipe_of: Callable[..., Recipe],
    training: Callable[..., Training],
) -> Callable[..., Trained]:
    """Trains the tiny model under level replay and returns a finished proof."""

    def make(
        path: Path,
        *,
        epochs: int = 2,
        task: Any = task,
        loop: Callable[[Any], None] = plain_loop,
        recipe: Recipe | None = None,
        **options: Any,
    ) -> Trained:
        recipe = recipe or recipe_of()
        run = training(path, task=task, recipe=recipe, **options)
        run.epochs(epochs, loop)
        proof = run.prover.finish()
        assert proof.shards == epochs
        return Trained(proof.path, task, run.source, recipe, alice, issuer)

    return make


@pytest.fixture(scope="session")
def honest(train: Callable[..., Trained], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two shards of eight steps, three segments each. Not to be changed: see `copied`."""
    return train(tmp_path_factory.mktemp("honest") / "proof")


@pytest.fixture(scope="session")
def answered(honest: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Challenge, Path]:
    """A challenge that asks for everything, ends included, and its answer. Not to be changed."""
    challenge = honest.everything(ends=True)
    return challenge, honest.answer(challenge, tmp_path_factory.mktemp("answer") / "answer")


@pytest.fixture(scope="session")
def lean(
    train: Callable[..., Trained],
    recipe_of: Callable[..., Recipe],
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    """The same under terms that ask for little, so that little must be run again."""
    recipe = recipe_of(draws=1, top=0, seals=0)
    return train(tmp_path_factory.mktemp("lean") / "proof", recipe=recipe)


@pytest.fixture(scope="session")
def asked(lean: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Challenge, Path]:
    """Two segments, and both sealings, of `lean`. Not to be changed."""
    challenge = replace(lean.everything(ends=True), segments=(Place(1, 0), Place(2, 1)))
    return challenge, lean.answer(challenge, tmp_path_factory.mktemp("asked") / "answer")


@pytest.fixture
def answer(asked: tuple[Challenge, Path], tmp_path: Path) -> Path:
    """A copy of the answer, to be spoilt or signed for other challenges."""
    return Path(shutil.copytree(asked[1], tmp_path / "answer"))


@pytest.fixture(scope="session")
def failures() -> Callable[[polo.Verdict], list[Any]]:
    """What a rejected proof failed by."""

    def find(verdict: polo.Verdict) -> list[Any]:
        assert verdict.outcome is Outcome.REJECTED, verdict.headline()
        return list(verdict.of(Status.FAILED))

    return find


@pytest.fixture(scope="session")
def only_failure(
    failures: Callable[[polo.Verdict], list[Any]],
) -> Callable[[polo.Verdict], Any]:
    """The one check that a rejected proof failed by."""

    def find(verdict: polo.Verdict) -> Any:
        (found,) = failures(verdict)
        return found

    return find


@pytest.fixture(scope="session")
def open_checks() -> Callable[[polo.Verdict], list[Any]]:
    """What could not be decided of an undecided proof."""

    def find(verdict: polo.Verdict) -> list[Any]:
        assert verdict.outcome is Outcome.UNDECIDED, verdict.headline()
        return list(verdict.of(Status.UNDECIDED))

    return find
