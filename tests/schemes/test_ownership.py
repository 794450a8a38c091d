"""Marks of every scheme are verified, and found in a model of which a part is missing."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file
from torch import nn

import polo
from polo.ownership import Finding
from polo.ownership.claimant import Claimant
from polo.ownership.reading import read_mark
from polo.ownership.sources import ArraySource
from polo.protocol import nonces, signing
from polo.protocol.detection import Reading
from polo.protocol.records import Enrolment
from polo.testing import Digits
from polo.watermark.schemes import SCHEMES

pytestmark = pytest.mark.slow

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SCHEMES),
    ("fedipr", {"block": 32, "budget": 0.8}),
    ("fedipr", {"block": 16, "budget": 0.8}),
    ("ednn-mean", {"key": "dense", "load": 1 / 16}),
]

EPOCHS = 4


class Wide(Digits):
    """The digits with norm scales so many that marks in them do not overwrite each other."""

    name = "wide-digits"

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 2048),
            nn.BatchNorm1d(2048),
            nn.ReLU(),
            nn.BatchNorm1d(2048),
            nn.Linear(2048, 10),
        )


def task_of(scheme: str) -> Digits:
    return Wide() if scheme == "fedipr" else Digits()


@dataclass(frozen=True)
class Owned:
    """A short proof and the model it ends in."""

    claimant: Claimant
    model: Any
    issuer: polo.Identity

    @property
    def scheme(self) -> Any:
        """The scheme's terms."""
        return self.claimant.manifest.terms.scheme

    @property
    def arrays(self) -> dict[int, Any]:
        """The model's tensors by their place in the layout."""
        state = self.model.state_dict()
        names = [tensor.name for tensor in self.claimant.layout.tensors]
        return {at: state[name].double().numpy() for at, name in enumerate(names)}

    def read(self, arrays: dict[int, Any]) -> list[Reading]:
        """All marks in these tensors."""
        marks, source = self.claimant.marks()[0], ArraySource(arrays)
        return [read_mark(self.claimant, mark, source).reading for mark in marks]


def label(case: Any) -> str:
    return " ".join([case[0], *(f"{name}={value}" for name, value in case[1].items())])


@pytest.fixture(scope="module", params=CASES, ids=label)
def owned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Owned:
    """Some shards by one of the schemes; the same marks in every run."""
    name, options = request.param
    alice, issuer = (
        polo.Identity(Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))) for n in (1, 2)
    )
    task = task_of(name)
    terms = polo.make_terms(task, scheme=name, shards=EPOCHS, **options)
    commitment, drawn = nonces.draw(EPOCHS, random.Random(0).randbytes)
    record = Enrolment(terms, alice.public_key, commitment, 1_700_000_000, issuer.public_key)
    enrolled = polo.OfflineEnrolment(signing.sign(record, issuer), drawn)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    store = tmp_path_factory.mktemp("owned") / "proof"
    prover = polo.Prover(enrolled, key=alice, store=store)
    with prover.attach(model, optimizer, evaluate=lambda: task.evaluate(model)):
        for _ in range(EPOCHS):
            task.train_epoch(model, optimizer)
            prover.end_epoch()
    assert len(prover.finish().manifest.shards) >= 3
    return Owned(Claimant(store, {issuer.public_key: "issuer"}), model, issuer)


def test_the_proof_is_accepted_and_the_model_recognised(owned: Owned, tmp_path: Path) -> None:
    path, trust = owned.claimant.folder.path, owned.issuer.public_key
    verdict = polo.verify(path, trust=trust, task=task_of(owned.scheme.name))
    assert verdict.outcome is polo.Outcome.ACCEPTED, verdict.headline()
    file = tmp_path / "found.safetensors"
    save_file(owned.model.state_dict(), str(file))
    result = polo.identify(file, [path], trust=trust)
    assert result.finding is Finding.CLAIM, result.headline()


def test_all_marks_are_still_there(owned: Owned) -> None:
    found = owned.read(owned.arrays)
    assert {reading.bits for reading in found} == {owned.scheme.bits}
    assert all(reading.eta > 0.75 for reading in found)
    assert found[-1].eta >= 0.99


def test_a_missing_tensor_takes_away_the_groups_that_are_all_in_it(owned: Owned) -> None:
    marks = owned.claimant.marks()[0]
    for name in owned.claimant.carrier.names:
        at, arrays = owned.claimant.layout.index[name], owned.arrays
        del arrays[at]
        found = owned.read(arrays)
        for derived, reading in zip(marks, found, strict=True):
            mark = derived.mark
            inside = [owned.claimant.carrier.locate(b).tensor == at for b in mark.blocks]
            lost = np.array(inside).reshape(mark.groups, -1).all(axis=1).sum()
            assert reading.bits == owned.scheme.bits - lost * mark.group_bits
        left = Reading(sum(r.bits for r in found), sum(r.matches for r in found))
        # In a group of several blocks those that are left still carry part of the sum.
        weaker = owned.scheme.name == "ednn-mean"
        assert not left.bits or left.eta > (0.6 if weaker else 0.75)


def test_nothing_is_found_in_a_stranger_or_in_half_of_one(owned: Owned) -> None:
    draw = np.random.default_rng(0)
    strange = {at: draw.normal(size=array.shape) for at, array in owned.arrays.items()}
    first = owned.claimant.layout.index[owned.claimant.carrier.names[0]]
    for arrays in (strange, {at: item for at, item in strange.items() if at != first}):
        found = owned.read(arrays)
        left = Reading(sum(r.bits for r in found), sum(r.matches for r in found))
        assert abs(left.matches - left.bits / 2) < 4.5 * (left.bits / 4) ** 0.5


def test_a_model_scaled_far_down_reads_the_same(owned: Owned) -> None:
    small = {at: array * 2.0**-60 for at, array in owned.arrays.items()}
    for before, after in zip(owned.read(owned.arrays), owned.read(small), strict=True):
        assert after == before
