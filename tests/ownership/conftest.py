"""What the tests of ownership share: an issuer's desk, chains without training, a real owner."""

import hashlib
import random
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import save_file

import polo
from polo.ownership.claimant import Claimant
from polo.protocol import chain, nonces, signing
from polo.protocol.detection import MILLION
from polo.protocol.layout import Layout
from polo.protocol.records import (
    Enrolment,
    File,
    FinishRecord,
    FinishTerms,
    Manifest,
    NoiseRecord,
    Nonce,
    NonceTerms,
    Receipt,
    Retention,
    Shard,
    Start,
    Terms,
)
from polo.receipts import Answer, Submission, answered
from polo.storage.folder import MANIFEST_FILE, ProofFolder, checkpoint_path, nonce_path
from polo.weights.checkpoint import MemoryCheckpoint, checkpoint_of
from polo.weights.files import write_checkpoint
from polo.weights.hashing import commit


@dataclass
class Registry:
    """A live source of nonces: one answer to each shard, and never a second one."""

    record: Enrolment
    issuer: polo.Identity
    drawing: random.Random
    answered: dict[int, Answer] = field(default_factory=dict)

    trouble: str = ""

    def source(self, signer: signing.Signer, registry: str | None = None) -> "Registry":
        """As an enrolment has it."""
        return self

    def commit(self, submission: Submission) -> "Future[Answer]":
        """As a prover asks."""
        return answered(self.answer(submission.number, submission.about.root))

    def finish(self, folder: Path, *, wait: float = 0.0) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is waited for."""

    def answer(self, shard: int, root: bytes) -> Answer:
        """The receipt for a root, and the nonce that did not exist before."""
        assert shard not in self.answered, "a registry answers once"
        nonce = Nonce(shard + 1, self.drawing.randbytes(32), self.drawing.randbytes(32), ())
        receipt = Receipt(
            self.record.digest, shard, root, 1_700_000_000 + shard, "log", shard, nonces.leaf(nonce)
        )
        self.answered[shard] = Answer(signing.sign(receipt, self.issuer), nonce)
        return self.answered[shard]


class Desk:
    """An issuer at work. The same keys and nonces are drawn in every run.

    Args:
        issuer: Signs everything.
        seed: Where the drawing begins.
    """

    def __init__(self, issuer: polo.Identity, seed: int) -> None:
        self.issuer = issuer
        self.trust = {issuer.public_key: "issuer"}
        self.random = random.Random(seed)

    def person(self) -> polo.Identity:
        """Somebody new."""
        return polo.Identity(Ed25519PrivateKey.from_private_bytes(self.random.randbytes(32)))

    def enrol(self, terms: Terms, key: polo.Identity) -> polo.OfflineEnrolment:
        """Offline: all nonces at once."""
        commitment, drawn = nonces.draw(terms.shards.most, self.random.randbytes)
        return polo.OfflineEnrolment(self._signed(terms, key, commitment), drawn)

    def enrol_live(self, terms: Terms, key: polo.Identity) -> Registry:
        """Live: a nonce for every root."""
        commitment = NonceTerms("live", self.random.randbytes(32), 0)
        return Registry(self._signed(terms, key, commitment), self.issuer, self.random)

    def roots(self, count: int) -> list[bytes]:
        """Roots of nothing; any 32 bytes will do."""
        return [self.random.randbytes(32) for _ in range(count)]

    def idle(
        self,
        path: Path,
        layout: Layout,
        *,
        shards: int,
        by: polo.Identity | None = None,
        live: bool = False,
        stored: Mapping[int, MemoryCheckpoint] | None = None,
        **terms: Any,
    ) -> Path:
        """A chain without training: its roots are random, or those of `stored` checkpoints."""
        key = by or self.person()
        enrol = self.enrol_live if live else self.enrol
        enrolment = enrol(polo.make_terms(layout, shards=shards, **terms), key)
        stored = stored or {}
        roots = self.roots(shards + 1)
        for number, checkpoint in stored.items():
            roots[number] = commit(checkpoint).root
        return write_chain(path, key, enrolment, layout, roots, stored)

    def claimant(self, path: Path) -> Claimant:
        """A chain as ownership sees it."""
        return Claimant(path, self.trust)

    def _signed(self, terms: Terms, key: polo.Identity, commitment: NonceTerms) -> Enrolment:
        terms.check()
        record = Enrolment(terms, key.public_key, commitment, 1_700_000_000, self.issuer.public_key)
        return signing.sign(record, self.issuer)


def put(proof: Path, name: str, data: bytes) -> File:
    """A file as a prover puts it into the folder and lists it."""
    path = proof / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return File(name, len(data), hashlib.sha256(data).digest())


def sign_again(proof: Path, key: polo.Identity, manifest: Manifest) -> None:
    """A prover who holds the key signs whatever it likes."""
    (proof / MANIFEST_FILE).write_bytes(signing.sign(manifest, key).to_bytes())


def checkpoint_bytes(checkpoint: MemoryCheckpoint) -> bytes:
    """A checkpoint as a proof stores it."""
    parts: list[bytes] = []
    write_checkpoint(checkpoint, lambda data: parts.append(bytes(data)))
    return b"".join(parts)


def write_chain(
    path: Path,
    key: polo.Identity,
    enrolment: Any,
    layout: Layout,
    roots: Sequence[bytes],
    stored: Mapping[int, MemoryCheckpoint] | None = None,
) -> Path:
    """A signed proof with these roots, whatever is behind them; nonces are all there."""
    if isinstance(enrolment, Registry):
        answers = [enrolment.answer(at, root) for at, root in enumerate(roots)]
    else:
        answers = [Answer(None, enrolment.nonces.of(at)) for at in range(1, len(roots) + 1)]
    terms = enrolment.record.terms
    shards = tuple(
        Shard(
            shard=at,
            previous=roots[at - 1],
            root=roots[at],
            epochs=1,
            steps=terms.shards.fewest_steps,
            matches=terms.scheme.bits,
            metrics={},
            finish=FinishRecord(0, 0),
            noise=NoiseRecord(terms.noise.least, bytes(32)),
            evidence={},
            sealed=1_700_000_000,
            receipt=answers[at].receipt,
        )
        for at in range(1, len(roots))
    )
    files = [put(path, "layout.json", layout.to_bytes())]
    for number, answer in enumerate(answers[:-1], start=1):
        files.append(put(path, nonce_path(number), answer.nonce.to_bytes()))
    for number, checkpoint in (stored or {}).items():
        files.append(put(path, checkpoint_path(number), checkpoint_bytes(checkpoint)))
    start = Start(roots[0], bytes(32), answers[0].receipt)
    listed = tuple(sorted(files, key=lambda file: file.path))
    sign_again(
        path,
        key,
        Manifest(
            enrolment.record, start, shards, Retention("all", 1, False), listed, True, 0, None
        ),
    )
    return path


def press_all(model: torch.nn.Module, claimant: Claimant, rounds: int = 3) -> None:
    """A thief's work: every mark of a chain, pressed into a model by the finishing step alone.

    Marks that share blocks disturb each other, so it goes round a few times.
    """
    from polo.embedding.embedder import Embedder
    from polo.embedding.placement import parameters_of

    manifest = claimant.manifest
    # The budget of the finishing step binds nobody who writes their own code.
    loose = replace(manifest.terms, finish=FinishTerms(MILLION, manifest.terms.finish.margin))
    parameters = parameters_of(model)
    for _ in range(rounds):
        for shard in range(1, claimant.shards + 1):
            nonce, previous = claimant.folder.nonce(shard), manifest.root_before(shard)
            seed = chain.seed_of(manifest.enrolment, nonce, previous=previous)
            embedder = Embedder(loose, claimant.carrier, seed, parameters)
            embedder.apply(embedder.finish())


def add_newest(proof: Path, model: torch.nn.Module, key: polo.Identity) -> None:
    """Put a model into a proof as its newest checkpoint, whatever its root; and sign again."""
    manifest = ProofFolder(proof).manifest()
    name = checkpoint_path(len(manifest.shards))
    file = put(proof, name, checkpoint_bytes(checkpoint_of(model)))
    listed = {f.path: f for f in (*manifest.files, file)}
    files = tuple(listed[path] for path in sorted(listed))
    sign_again(proof, key, replace(manifest, files=files))


def owned_model() -> torch.nn.Module:
    """138 blocks of 256 weights; two matrices of one square shape, and two that mirror another."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(16, 128),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 4),
    )


@dataclass(frozen=True)
class Owner:
    """A real chain: trained, sealed, finished.

    Attributes:
        path: The proof.
        key: Its owner's key.
        enrolment: Its enrolment.
        model: The model that it ends in.
        task: The task.
    """

    path: Path
    key: polo.Identity
    enrolment: Any
    model: torch.nn.Module
    task: Any

    @property
    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """The finished weights."""
        return {name: value.numpy().copy() for name, value in self.model.state_dict().items()}


def train_chain(
    path: Path,
    key: polo.Identity,
    enrolment: Any,
    model: torch.nn.Module,
    task: Any,
    *,
    epochs: int,
    **options: Any,
) -> Owner:
    """Train a model under an enrolment, a shard an epoch.

    The secret of the obfuscation is the same in every run, and so are all roots and marks.
    """
    state = path.with_name(path.name + ".state")
    state.mkdir(parents=True)
    (state / "secret").write_bytes(hashlib.sha256(enrolment.record.digest).digest())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    prover = polo.Prover(enrolment, key=key, store=path, **options)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(epochs):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    prover.finish()
    return Owner(path, key, enrolment, model, task)


def train_plain(task: Any, seed: int, epochs: int = 6) -> torch.nn.Module:
    """A model of the task that never saw a mark."""
    torch.manual_seed(seed)
    model: torch.nn.Module = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        task.train_epoch(model, optimizer)
    return model


@pytest.fixture(scope="session")
def kit() -> Any:
    """The functions above, by name: test modules cannot import this file."""
    return types.SimpleNamespace(
        put=put,
        sign_again=sign_again,
        write_chain=write_chain,
        press_all=press_all,
        train_chain=train_chain,
        train_plain=train_plain,
        checkpoint_bytes=checkpoint_bytes,
        owned_model=owned_model,
        save=lambda state, path: (save_file(state, path), path)[1],
        layout_of=lambda state: checkpoint_of(state).layout,
        add_newest=add_newest,
    )


@pytest.fixture(scope="session")
def desks(issuer: polo.Identity) -> Callable[[int], Desk]:
    """Desks by the seed that they draw from."""
    return lambda seed: Desk(issuer, seed)


@pytest.fixture
def desk(issuer: polo.Identity, request: pytest.FixtureRequest) -> Desk:
    """An issuer's desk; every test draws nonces of its own."""
    return Desk(issuer, int.from_bytes(hashlib.sha256(request.node.nodeid.encode()).digest()[:8]))


@pytest.fixture(scope="session")
def owned_task(task: Any) -> Any:
    """The tiny task with the larger model."""
    return type(task)(owned_model)


@pytest.fixture(scope="session")
def owner(
    tmp_path_factory: pytest.TempPathFactory,
    owned_task: Any,
    alice: polo.Identity,
    issuer: polo.Identity,
) -> Owner:
    """Alice's chain of eight marks of 256 bits, all checkpoints kept. Nobody may change it."""
    desk = Desk(issuer, 1)
    terms = polo.make_terms(owned_task, bits=256, shards=8, strength=0.02)
    torch.manual_seed(11)
    path = tmp_path_factory.mktemp("owner") / "proof"
    return train_chain(path, alice, desk.enrol(terms, alice), owned_model(), owned_task, epochs=8)


@pytest.fixture(scope="session")
def stranger(owned_task: Any) -> torch.nn.Module:
    """A model of the same architecture that was trained without any mark."""
    return train_plain(owned_task, seed=12)


@pytest.fixture
def look(owner: Owner, issuer: polo.Identity, tmp_path: Path) -> Callable[..., Any]:
    """Looks for the owner's marks in weights, or in a file."""
    from polo import ownership

    def identify(model: Any, *more: Path, **options: Any) -> Any:
        path = model
        if isinstance(model, Mapping):
            path = tmp_path / f"found-{random.randrange(10**9)}.safetensors"
            save_file({name: np.ascontiguousarray(v) for name, v in model.items()}, path)
        proofs = [owner.path, *more]
        return ownership.identify(path, proofs, trust=issuer.public_key, **options)

    return identify
