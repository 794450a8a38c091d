"""Marks after alignment: the owner is found, and nobody gains by choosing the reference."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polo
from polo import ownership
from polo.ownership import Finding
from polo.ownership.aligned import Aligner, references
from polo.ownership.claimant import Claimant
from polo.protocol.combination import CLAIM_LOG2_P, combine
from polo.storage.folder import ProofFolder, checkpoint_path, nonce_path
from polo.weights.checkpoint import checkpoint_of
from polo.weights.found import open_found
from polo.weights.hashing import commit

pytestmark = pytest.mark.slow

State = dict[str, np.ndarray[Any, Any]]


def plain_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4),
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain_task(task: Any) -> Any:
    return type(task)(plain_model)


@pytest.fixture(scope="module")
def owned(plain_task: Any, desks: Callable[[int], Any], kit: Any, tmp_path_factory: Any) -> Any:
    """A real chain of six marks."""
    desk = desks(21)
    key = desk.person()
    terms = polo.make_terms(plain_task, bits=256, shards=6, strength=0.02)
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("aligned") / "proof"
    enrolment = desk.enrol(terms, key)
    return kit.train_chain(path, key, enrolment, plain_model(), plain_task, epochs=6)


@pytest.fixture(scope="module")
def strangers(plain_task: Any, kit: Any) -> list[State]:
    models = [kit.train_plain(plain_task, 50 + seed, epochs=4) for seed in range(3)]
    return [{n: v.numpy() for n, v in model.state_dict().items()} for model in models]


def disguised(state: State, seed: int) -> State:
    """The same function from other weights: channels permuted, and rescaled by up to four."""
    drawing = np.random.default_rng(seed)
    state = {name: value.copy() for name, value in state.items()}
    for here, there in (("0", "2"), ("2", "4"), ("4", "6")):
        size = len(state[f"{here}.bias"])
        order = drawing.permutation(size)
        factors = np.exp2(drawing.uniform(-2, 2, size)).astype(np.float32)
        state[f"{here}.weight"] = state[f"{here}.weight"][order] * factors[:, None]
        state[f"{here}.bias"] = state[f"{here}.bias"][order] * factors
        state[f"{there}.weight"] = state[f"{there}.weight"][:, order] / factors
    return state


@pytest.fixture
def search(
    plain_task: Any, issuer: polo.Identity, kit: Any, tmp_path: Path
) -> Callable[..., ownership.Claim]:
    def run(state: State, proof: Path, *, align: bool = True) -> ownership.Claim:
        found = kit.save({n: np.ascontiguousarray(v) for n, v in state.items()},
                         tmp_path / "found.safetensors")  # fmt: skip
        result = ownership.identify(
            found, [proof], trust=issuer.public_key, align=align, task=plain_task
        )
        claim: ownership.Claim = result.claims[0]
        return claim

    return run


def test_a_disguised_model_is_found_only_when_aligned(
    owned: Any, search: Callable[..., ownership.Claim]
) -> None:
    state = disguised(owned.state, 3)
    assert search(state, owned.path, align=False).finding is Finding.NO_CLAIM
    claim = search(state, owned.path)
    assert claim.finding is Finding.CLAIM
    assert claim.eta > 0.8
    assert claim.tries.readings == 2
    assert "aligned to" in claim.how


def test_offline_marks_are_read_against_the_checkpoint_that_they_derive_from(
    owned: Any, search: Callable[..., ownership.Claim]
) -> None:
    claim = search(disguised(owned.state, 3), owned.path)
    assert [mark.shard for mark in claim.marks] == [at + 1 for at in references(range(6), 6)]
    assert claim.tries.log2_selections > 0


def test_a_strangers_model_is_not_claimed(
    owned: Any, search: Callable[..., ownership.Claim], strangers: list[State]
) -> None:
    for seed, state in enumerate(strangers):
        claim = search(disguised(state, seed), owned.path)
        assert claim.finding is Finding.NO_CLAIM
        assert claim.log2_p > -20


def made_of_marks(claimant: Claimant, shards: range) -> State:
    """Weights that are nothing but the marks of some shards."""
    layout, carrier = claimant.layout, claimant.carrier
    state = {t.name: np.zeros(t.shape, np.float32) for t in layout.tensors}
    for shard in shards:
        mark = claimant.mark(shard).mark
        for group, block in enumerate(mark.blocks):
            where = carrier.locate(block)
            values = (2.0 * mark.bits[group] - 1) @ mark.signs(group)
            flat = state[layout.tensors[where.tensor].name].reshape(-1)
            flat[where.element : where.element + carrier.block] += values.astype(np.float32)
    return state


def evil_chain(path: Path, task: Any, desk: Any, kit: Any, *, live: bool, hide: bool) -> Path:
    """All roots come first; then W_0 is made out of the marks that follow from them.

    Args:
        path: Where to put it.
        task: The task.
        desk: Who enrols.
        kit: The shared functions.
        live: Whether the nonces come in receipts.
        hide: Whether the first nonce, which answers the root of another W_0, is left out.
    """
    key = desk.person()
    terms = polo.make_terms(task, bits=256, shards=6)
    enrolment = (desk.enrol_live if live else desk.enrol)(terms, key)
    kit.write_chain(path, key, enrolment, checkpoint_of(plain_model()).layout, desk.roots(7))
    reference = checkpoint_of(made_of_marks(desk.claimant(path), range(2, 7)))
    manifest = ProofFolder(path).manifest()
    root = commit(reference).root
    stored = kit.put(path, checkpoint_path(0), kit.checkpoint_bytes(reference))
    kept = [file for file in manifest.files if not hide or file.path != nonce_path(1)]
    manifest = replace(
        manifest,
        start=replace(manifest.start, root=root),
        shards=(replace(manifest.shards[0], previous=root), *manifest.shards[1:]),
        files=tuple(sorted([*kept, stored], key=lambda file: file.path)),
    )
    kit.sign_again(path, key, manifest)
    return path


@pytest.mark.parametrize(("live", "hide"), [(False, False), (False, True), (True, True)])
def test_a_reference_made_of_later_marks_claims_nothing(
    plain_task: Any,
    desk: Any,
    kit: Any,
    search: Callable[..., ownership.Claim],
    strangers: list[State],
    tmp_path: Path,
    live: bool,
    hide: bool,
) -> None:
    """With every older checkpoint as reference, this claimed a stranger's model at 2^−180."""
    path = evil_chain(tmp_path / "evil", plain_task, desk, kit, live=live, hide=hide)
    claim = search(strangers[0], path)
    assert claim.finding is not Finding.CLAIM
    assert claim.log2_p > -20


def test_a_live_reference_that_the_log_does_not_know_is_refused(
    plain_task: Any, desk: Any, kit: Any, search: Callable[..., ownership.Claim],
    strangers: list[State], tmp_path: Path,
) -> None:  # fmt: skip
    path = evil_chain(tmp_path / "evil", plain_task, desk, kit, live=True, hide=False)
    claim = search(strangers[0], path)
    assert claim.finding is Finding.UNDECIDED
    assert "for other weights" in claim.problem


def test_control_that_reference_does_carry_the_marks_into_a_strangers_model(
    plain_task: Any, desk: Any, kit: Any, strangers: list[State], tmp_path: Path
) -> None:
    """So the attack above is a real one: aligned to it, unrelated weights read far from chance."""
    from polo.alignment import align, trace
    from polo.ownership.reading import read_mark
    from polo.ownership.sources import ArraySource

    path = evil_chain(tmp_path / "evil", plain_task, desk, kit, live=False, hide=False)
    claimant = desk.claimant(path)
    model = plain_model().eval()
    wiring = trace(model, (torch.zeros(2, 16),))
    reference = made_of_marks(claimant, range(2, 7))
    arrays = align(strangers[0], reference, wiring).arrays
    index = claimant.layout.index
    source = ArraySource({index[name]: values for name, values in arrays.items()})
    marks = [read_mark(claimant, claimant.mark(shard), source) for shard in range(2, 7)]
    assert combine(marks) < CLAIM_LOG2_P


def test_a_checkpoint_that_is_not_the_committed_one_is_no_reference(
    owned: Any, search: Callable[..., ownership.Claim], kit: Any, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(owned.path, path)
    manifest = ProofFolder(path).manifest()
    data = bytearray((path / checkpoint_path(0)).read_bytes())
    data[-2] ^= 0x10
    file = kit.put(path, checkpoint_path(0), bytes(data))
    files = tuple(file if f.path == file.path else f for f in manifest.files)
    kit.sign_again(path, owned.key, replace(manifest, files=files))
    claim = search(disguised(owned.state, 3), path)
    assert claim.finding is Finding.UNDECIDED
    assert "checkpoint 0 is not the one that the chain commits to" in claim.problem


def test_a_proof_without_older_checkpoints_says_so(
    owned: Any, search: Callable[..., ownership.Claim], kit: Any, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(owned.path, path)
    manifest = ProofFolder(path).manifest()
    gone = {checkpoint_path(at) for at in range(6)}
    files = tuple(file for file in manifest.files if file.path not in gone)
    kit.sign_again(path, owned.key, replace(manifest, files=files))
    claim = search(disguised(owned.state, 3), path)
    assert claim.finding is Finding.UNDECIDED
    assert "no older checkpoint is here" in claim.problem
    assert claim.advice


def test_references_are_few_even_and_older_than_the_last() -> None:
    assert references([], 5) == []
    assert references([5], 5) == []
    assert references([5, 4], 5) == [4]
    assert references(range(101), 100) == [0, 33, 66, 99]
    assert references([3, 1, 0], 3) == [0, 1]


def test_the_wiring_of_a_task_is_traced_once(
    owned: Any, plain_task: Any, desk: Any, kit: Any, tmp_path: Path
) -> None:
    """Many claimants of one task cost one trace."""
    calls = []

    class Counting(type(plain_task)):  # type: ignore[misc]
        def evaluate(self, model: Any) -> float:
            calls.append(model)
            return float(super().evaluate(model))

    aligner = Aligner(Counting(plain_model))
    found = kit.save(disguised(owned.state, 1), tmp_path / "found.safetensors")
    claimant = desk.claimant(owned.path)
    blank = ownership.Claim(str(owned.path))
    with open_found(found) as model:
        for _ in range(2):
            assert aligner.better(claimant, model, blank).finding is Finding.CLAIM
    assert len(calls) == 1


def test_without_torch_alignment_says_what_is_missing(owned: Any, tmp_path: Path) -> None:
    """In a process in which torch cannot be imported."""
    program = """
import sys
sys.modules["torch"] = None
from polo import cli
sys.exit(cli.run(["identify", *sys.argv[1:], "--align"]))
"""
    found = owned.path / checkpoint_path(0)
    command = [sys.executable, "-c", program, str(found), "--proof", str(owned.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "polo-proof[align]" in done.stderr
    assert "Traceback" not in done.stderr
