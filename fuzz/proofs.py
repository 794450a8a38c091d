"""Small real proofs with known keys, so that whatever is changed in them can be signed again."""

import functools
import random
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

import polo
from fuzz import sandbox
from polo.protocol import nonces, signing
from polo.protocol.records import Enrolment
from polo.storage import transfers
from polo.storage.folder import state_path_of

SHARDS = 2
ISSUER = polo.Identity(Ed25519PrivateKey.from_private_bytes(b"i" * 32))
BUYER = polo.Identity(Ed25519PrivateKey.from_private_bytes(b"b" * 32))
PROVER = polo.Identity(Ed25519PrivateKey.from_private_bytes(b"p" * 32))


class Points:
    """Four clouds of points, and a model of 1,300 weights."""

    name = "points"
    version = 1
    metric = "accuracy"
    floor: tuple[float, ...] = (0.1,)

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._labels = torch.arange(128) % 4
        centres = torch.randn(4, 16, generator=generator)
        self._points = centres[self._labels] + 0.5 * torch.randn(128, 16, generator=generator)

    def build_model(self) -> nn.Module:
        """Two layers, and buffers."""
        return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))

    def evaluate(self, model: nn.Module) -> float:
        """Accuracy."""
        model.eval()
        with torch.no_grad():
            right = model(self._points).argmax(1) == self._labels
        model.train()
        return float(right.double().mean())

    def train(self, model: nn.Module, optimizer: Any) -> None:
        """Four steps."""
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(self._points), self._labels).backward()
            optimizer.step()


@functools.cache
def task() -> Points:
    """The task of the proof."""
    return Points()


def enrolment(
    identity: polo.Identity = PROVER, parent: bytes | None = None
) -> polo.OfflineEnrolment:
    """The same enrolment every time."""
    terms = polo.make_terms(
        task(), bits=64, block=64, shards=SHARDS + 1, strength=0.02, log2_p=-40, parent=parent
    )
    commitment, drawn = nonces.draw(terms.shards.most, random.Random(0).randbytes)
    record = Enrolment(terms, identity.public_key, commitment, 1_700_000_000, ISSUER.public_key)
    return polo.OfflineEnrolment(signing.sign(record, ISSUER), drawn)


@functools.cache
def proof(*, retention: str = "all", deltas: bool = True) -> Path:
    """The folder of a finished proof; do not change it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    path = sandbox.folder(f"proof-{retention}-{deltas}") / "proof"
    _train(task().build_model(), enrolment(), PROVER, path, retention, deltas)
    return path


@functools.cache
def bought() -> Path:
    """The folder of a proof whose owner bought the model; do not change it."""
    seller = proof(retention="thin", deltas=False)
    torch.manual_seed(1)
    model = task().build_model()
    root = polo.load_weights(model, seller)
    path = sandbox.folder("bought") / "proof"
    _train(model, enrolment(BUYER, root), BUYER, path, "thin", False)
    asked = transfers.request(path, seller, BUYER)
    transfers.complete(path, transfers.sign(asked, seller, PROVER), seller, BUYER)
    return path


def _train(
    model: nn.Module,
    enrolled: polo.OfflineEnrolment,
    key: polo.Identity,
    path: Path,
    retention: str,
    deltas: bool,
) -> None:
    # With the noise of another secret an input found today might mean something else tomorrow.
    secret = state_path_of(path) / "secret"
    secret.parent.mkdir(mode=0o700)
    secret.write_bytes(b"s" * 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prover = polo.Prover(enrolled, key=key, store=path, retention=retention, deltas=deltas)
    with prover.attach(model, optimizer):
        while prover.shards < SHARDS:
            task().train(model, optimizer)
            prover.end_epoch(evaluate=lambda: task().evaluate(model))
    prover.finish()
