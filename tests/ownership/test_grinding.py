"""A prover who knows its nonces tries many roots for every mark. It must gain nothing by it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import polo
from polo import ownership
from polo.ownership import Finding
from polo.ownership.claimant import DerivedMark
from polo.ownership.reading import read_mark
from polo.ownership.sources import CheckpointSource
from polo.protocol import chain, nonces, signing
from polo.protocol.combination import (
    CLAIM_LOG2_P,
    GRINDING_BITS,
    ReadMark,
    combine,
    log2_fisher,
)
from polo.protocol.detection import Reading, log2_tail
from polo.protocol.records import Nonce, Receipt
from polo.storage.folder import ProofFolder, nonce_path
from polo.watermark.mark import carrier_of, derive
from polo.weights.checkpoint import checkpoint_of

MARKS = 50
TRIES = 64
BITS = 256


class Grinder:
    """Reads marks of roots that do not exist, in a model that nobody marked."""

    def __init__(self, model: torch.nn.Module, enrolment: Any) -> None:
        self.record = enrolment.record
        self.checkpoint = checkpoint_of(model)
        self.carrier = carrier_of(self.record.terms, self.checkpoint.layout)
        self.source = CheckpointSource(self.checkpoint)

    def matches(self, nonce: Nonce, root: bytes) -> int:
        """What the mark of this root and nonce reads."""
        seed = chain.seed_of(self.record, nonce, previous=root)
        mark = DerivedMark(nonce.shard, derive(self.record.terms, self.carrier, seed), False)
        return read_mark(self, mark, self.source).reading.matches  # type: ignore[arg-type]

    def best(self, nonce: Nonce, roots: list[bytes]) -> bytes:
        """The root that happens to fit best. Roots may be any 32 bytes."""
        return max(roots, key=lambda root: self.matches(nonce, root))


@pytest.fixture(scope="module")
def ground(
    owned_task: Any, stranger: torch.nn.Module, desks: Any, kit: Any, tmp_path_factory: Any
) -> Any:
    """An offline chain of which every root is the best of 64."""
    desk = desks(31)
    key = desk.person()
    enrolment = desk.enrol(polo.make_terms(owned_task, bits=BITS, shards=MARKS), key)
    grinder = Grinder(stranger, enrolment)
    roots = [grinder.best(nonce, desk.roots(TRIES)) for nonce in enrolment.drawn]
    path = tmp_path_factory.mktemp("ground") / "proof"
    kit.write_chain(path, key, enrolment, grinder.checkpoint.layout, [*roots, *desk.roots(1)])
    model = tmp_path_factory.mktemp("ground") / "model.safetensors"
    kit.save({n: v.numpy() for n, v in stranger.state_dict().items()}, model)
    return path, model


@pytest.mark.slow
def test_ground_roots_would_win_if_marks_were_simply_added_up(ground: Any, issuer: Any) -> None:
    """The control: what the rule is for."""
    path, model = ground
    claim = ownership.identify(model, [path], trust=issuer.public_key).claims[0]
    assert len(claim.marks) == MARKS
    assert {mark.live for mark in claim.marks} == {False}
    naive = [ReadMark(mark.shard, mark.reading, True) for mark in claim.marks]
    assert combine(naive) < 2 * CLAIM_LOG2_P
    matches = sum(mark.reading.matches for mark in claim.marks)
    assert log2_tail(MARKS * BITS, matches) < -150
    assert 0.56 < claim.eta < 0.60


@pytest.mark.slow
def test_ground_roots_make_no_claim(ground: Any, issuer: Any) -> None:
    path, model = ground
    result = ownership.identify(model, [path], trust=issuer.public_key)
    claim = result.claims[0]
    assert claim.finding is Finding.NO_CLAIM
    assert claim.log2_p == claim.log2_combined == 0
    assert result.finding is Finding.NO_CLAIM


def test_grinding_gains_log2_of_the_tries_and_the_rule_grants_more() -> None:
    """Even with 2^40 tries for every mark of the longest chain nothing is left."""
    needed = next(m for m in range(BITS) if log2_tail(BITS, m) <= -40)
    marks = [ReadMark(at, Reading(BITS, needed), False) for at in range(1, 10_001)]
    assert combine(marks) == 0
    live = [replace(mark, live=True) for mark in marks]
    assert combine(live) < CLAIM_LOG2_P


# Live


@pytest.fixture
def live(
    owned_task: Any, stranger: torch.nn.Module, desk: Any, kit: Any, tmp_path: Path
) -> tuple[Path, polo.Identity, Any]:
    """An idle live chain of eight marks: its roots were in the log before the nonces existed."""
    key = desk.person()
    registry = desk.enrol_live(polo.make_terms(owned_task, bits=BITS, shards=8), key)
    layout = checkpoint_of(stranger).layout
    path = kit.write_chain(tmp_path / "live", key, registry, layout, desk.roots(9))
    return path, key, registry


@pytest.fixture
def unmarked(stranger: torch.nn.Module, kit: Any, tmp_path: Path) -> Path:
    state = {n: v.numpy() for n, v in stranger.state_dict().items()}
    path: Path = kit.save(state, tmp_path / "unmarked.safetensors")
    return path


def test_a_live_nonce_holds_for_the_root_in_its_receipt_alone(
    live: Any, unmarked: Path, stranger: torch.nn.Module, desk: Any, kit: Any, issuer: Any
) -> None:
    """The prover grinds roots after it saw the nonces; the receipts are for other roots."""
    path, key, registry = live
    before = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert before.finding is Finding.NO_CLAIM
    assert {mark.live for mark in before.marks} == {True}
    grinder = Grinder(stranger, registry)
    manifest = ProofFolder(path).manifest()
    roots = [
        grinder.best(registry.answered[at].nonce, desk.roots(8))
        for at in range(len(manifest.shards))
    ]
    roots.append(manifest.last_root)
    shards = tuple(
        replace(shard, previous=roots[at - 1], root=roots[at])
        for at, shard in enumerate(manifest.shards, start=1)
    )
    start = replace(manifest.start, root=roots[0])
    kit.sign_again(path, key, replace(manifest, start=start, shards=shards))
    claim = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert claim.finding is Finding.UNDECIDED
    assert "for other weights than the chain's" in claim.problem


def test_receipts_cannot_be_changed_to_fit(
    live: Any, unmarked: Path, desk: Any, kit: Any, issuer: Any
) -> None:
    path, key, _ = live
    manifest = ProofFolder(path).manifest()
    root = desk.roots(1)[0]
    own = signing.sign(replace(manifest.start.receipt, root=root), key)
    for receipt, said in (
        (replace(manifest.start.receipt, root=root), "signature"),
        (own, "signature"),
        (None, "no receipt"),
        (manifest.shards[0].receipt, "another shard"),
    ):
        start = replace(manifest.start, root=root, receipt=receipt)
        first = replace(manifest.shards[0], previous=root)
        shards = (first, *manifest.shards[1:])
        kit.sign_again(path, key, replace(manifest, start=start, shards=shards))
        claim = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
        assert claim.finding is Finding.UNDECIDED
        assert said in claim.problem, claim.problem


def test_a_nonce_of_ones_own_is_not_the_one_in_the_receipt(
    live: Any, unmarked: Path, desk: Any, kit: Any, issuer: Any
) -> None:
    """The prover would rather grind nonces than roots."""
    path, key, registry = live
    manifest = ProofFolder(path).manifest()
    fresh = replace(registry.answered[2].nonce, nonce=desk.roots(1)[0])
    file = kit.put(path, nonce_path(3), fresh.to_bytes())
    files = tuple(file if f.path == file.path else f for f in manifest.files)
    kit.sign_again(path, key, replace(manifest, files=files))
    claim = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert claim.finding is Finding.UNDECIDED
    assert "not the one in the receipt" in claim.problem


def test_an_offline_enrolment_does_not_become_live_by_receipts(
    ground_small: Any, unmarked: Path, kit: Any, issuer: Any
) -> None:
    """Whether a mark is live is in what the issuer signed, not in what the prover adds."""
    path, key, enrolment = ground_small
    manifest = ProofFolder(path).manifest()
    start = manifest.start
    forged = Receipt(
        enrolment.record.digest, 0, start.root, 1, "log", 0, nonces.leaf(enrolment.drawn[0])
    )
    start = replace(start, receipt=signing.sign(forged, key))
    kit.sign_again(path, key, replace(manifest, start=start))
    claim = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert {mark.live for mark in claim.marks} == {False}


@pytest.fixture
def ground_small(
    owned_task: Any, stranger: torch.nn.Module, desk: Any, kit: Any, tmp_path: Path
) -> Any:
    key = desk.person()
    enrolment = desk.enrol(polo.make_terms(owned_task, bits=BITS, shards=4), key)
    layout = checkpoint_of(stranger).layout
    path = kit.write_chain(tmp_path / "offline", key, enrolment, layout, desk.roots(5))
    return path, key, enrolment


# Showing the lucky marks only


@pytest.mark.slow
def test_a_live_prover_who_keeps_unlucky_nonces_back_gains_nothing(
    owned_task: Any, stranger: torch.nn.Module, desk: Any, kit: Any, issuer: Any,
    unmarked: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """Live marks enter as they are, so a selection of them must be paid for."""
    key = desk.person()
    shards = 1000
    registry = desk.enrol_live(polo.make_terms(owned_task, bits=32, shards=shards, log2_p=-20), key)
    layout = checkpoint_of(stranger).layout
    path = kit.write_chain(tmp_path / "many", key, registry, layout, desk.roots(shards + 1))
    whole = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert whole.finding is Finding.NO_CLAIM
    lucky = {nonce_path(m.shard) for m in whole.marks if m.reading.matches > m.reading.bits // 2}
    manifest = ProofFolder(path).manifest()
    kept = tuple(f for f in manifest.files if not f.path.startswith("nonces/") or f.path in lucky)
    kit.sign_again(path, key, replace(manifest, files=kept))
    claim = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert len(claim.marks) == len(lucky)
    assert claim.log2_combined < CLAIM_LOG2_P
    assert claim.log2_p > -20
    assert claim.finding is not Finding.CLAIM
    assert claim.tries.log2_selections > math.log2(math.comb(shards, len(lucky)))
    # Leaving the files away, and the manifest as it was, is the same.
    kit.sign_again(path, key, manifest)
    for shard in range(1, shards + 1):
        if nonce_path(shard) not in lucky:
            (path / nonce_path(shard)).unlink()
    again = ownership.identify(unmarked, [path], trust=issuer.public_key).claims[0]
    assert again.log2_p == claim.log2_p


def test_the_price_of_a_false_claim() -> None:
    """The cheapest offline claim on a stranger's model, over all numbers of marks, in tries.

    Each mark is ground by what Fisher needs beyond the grant; docs/threat-model.md has the figure.
    """

    def beyond(marks: int) -> float:
        low, high = 0.0, 300.0
        for _ in range(60):
            middle = (low + high) / 2
            enough = log2_fisher(marks * middle * math.log(2), marks) <= CLAIM_LOG2_P
            low, high = (low, middle) if enough else (middle, high)
        return high

    prices = {marks: math.log2(marks) + GRINDING_BITS + beyond(marks) for marks in range(1, 400)}
    cheapest = min(prices, key=lambda marks: prices[marks])
    assert 60 <= cheapest <= 80
    assert 73 <= prices[cheapest] <= 75
