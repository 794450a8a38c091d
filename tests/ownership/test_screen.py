"""The quick look: its power is what it says, and it never changes who is named."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import polo
from polo import ownership
from polo.ownership import Finding, identification, screen
from polo.ownership.screen import BITS, EARLY, ETA, MARKS, POWER, Screen, passes, screen_of
from polo.ownership.sources import ArraySource, CheckpointSource
from polo.protocol.combination import ReadMark
from polo.protocol.detection import Reading
from polo.storage.folder import ProofFolder, checkpoint_path, nonce_path
from polo.weights.checkpoint import checkpoint_of


@pytest.mark.parametrize("bits", [0, 1, 16, 256, 1000, 1024, 8192])
@pytest.mark.parametrize("eta", [0.3, 0.5, 0.62, 0.99])
def test_power_is_the_tail_of_a_binomial(bits: int, eta: float) -> None:
    for least in {0, bits // 2, bits * 2 // 3, bits}:
        expected = stats.binom.sf(least - 1, bits, eta)
        assert Screen(bits, least).power(eta) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("bits", [1, 16, 256, 512, 1000, 1024, 8192])
def test_it_is_the_strictest_screen_of_its_power(bits: int) -> None:
    found = screen_of(bits)
    assert found.power(ETA) >= POWER
    if found.least < bits:
        assert Screen(bits, found.least + 1).power(ETA) < POWER


def test_the_usual_screen_lets_few_strangers_through() -> None:
    usual = screen_of(BITS)
    assert usual.false_pass == usual.power(0.5) < 5e-3
    assert usual.power(0.7) > 1 - 1e-8


def test_simulation_agrees_with_the_figures() -> None:
    """Both within a binomial interval that errs in one of 1000 cases."""
    rng = np.random.default_rng(7)
    small = screen_of(256)
    for eta in (0.5, 0.58, 0.62):
        hits = int((rng.binomial(256, eta, 200_000) >= small.least).sum())
        assert stats.binomtest(hits, 200_000, small.power(eta)).pvalue > 1e-3


@pytest.fixture
def chain(desk: Any, owner: Any, kit: Any, tmp_path: Path) -> Any:
    path = desk.idle(tmp_path / "chain", kit.layout_of(owner.state), shards=20, bits=256)
    return desk.claimant(path)


@pytest.mark.parametrize(("eta", "least", "most"), [(0.62, 0.999, 1.0), (0.5, 0.0, 0.01)])
def test_a_chain_that_reads_at_a_rate_gets_through_as_it_should(
    chain: Any, monkeypatch: pytest.MonkeyPatch, eta: float, least: float, most: float
) -> None:
    """2000 simulated chains through the real screen; only the readings are drawn."""
    rng = np.random.default_rng(3)

    def drawn(_claimant: Any, mark: Any, _source: Any, groups: Any) -> ReadMark:
        bits = len(groups) * mark.mark.group_bits
        return ReadMark(mark.shard, Reading(bits, int(rng.binomial(bits, eta))), False)

    monkeypatch.setattr(screen, "read_mark", drawn)
    marks = {shard: chain.mark(shard) for shard in range(1, 21)}
    monkeypatch.setattr(chain, "mark", marks.__getitem__)
    through = [passes(chain, ArraySource({}))[0] for _ in range(2000)]
    assert least <= np.mean(through) <= most


def test_it_reads_a_few_bits_of_a_few_marks(
    chain: Any, stranger: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def spy(claimant: Any, mark: Any, source: Any, groups: Any) -> ReadMark:
        read.append((mark.shard, len(groups)))
        return screen_read(claimant, mark, source, groups)

    screen_read = screen.read_mark
    monkeypatch.setattr(screen, "read_mark", spy)
    worth, looked = passes(chain, CheckpointSource(checkpoint_of(stranger)))
    assert not worth
    assert len(read) in (EARLY, MARKS)
    assert looked == screen_of(BITS * len(read) // MARKS)
    assert len({shard for shard, _ in read}) == len(read)
    assert {groups for _, groups in read} == {4}


def test_nobody_can_foresee_which_marks_are_looked_at(chain: Any) -> None:
    draws = [
        [(derived.shard, *groups) for derived, groups in screen.sample(chain)] for _ in range(200)
    ]
    assert len({tuple(draw) for draw in draws}) > 190
    assert {shard for draw in draws for shard, *_ in draw} == set(range(1, 21))
    assert all(len({shard for shard, *_ in draw}) == MARKS for draw in draws)
    again = [list(screen.sample(chain, random.Random(5))) for _ in range(2)]
    assert again[0] == again[1]


def test_what_cannot_be_screened_gets_through(
    chain: Any, desk: Any, stranger: torch.nn.Module, owner: Any, kit: Any, tmp_path: Path
) -> None:
    assert passes(chain, ArraySource({})) == (True, Screen(0, 0))
    source = CheckpointSource(checkpoint_of(stranger))
    short = desk.idle(
        tmp_path / "short", kit.layout_of(owner.state), shards=1, bits=128, log2_p=-64
    )
    worth, looked = passes(desk.claimant(short), source)
    assert worth
    assert looked.bits == 128
    for shard in range(1, 21):
        (chain.folder.path / nonce_path(shard)).unlink()
    assert passes(chain, source)[0]


def test_a_dense_key_is_screened_whole(
    desk: Any, owner: Any, stranger: torch.nn.Module, kit: Any, tmp_path: Path
) -> None:
    path = desk.idle(
        tmp_path / "dense", kit.layout_of(owner.state), shards=8, bits=256, key="dense"
    )
    worth, looked = passes(desk.claimant(path), CheckpointSource(checkpoint_of(stranger)))
    assert not worth
    assert looked.bits in (EARLY * 256, MARKS * 256)


def test_one_mark_that_survived_alone_gets_through(
    chain: Any, stranger: torch.nn.Module, owned_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others were scrubbed by somebody who had been shown them."""

    chosen = list(screen.sample(chain))
    survivor = chosen[0][0].shard

    def scrubbed(_claimant: Any, mark: Any, _source: Any, groups: Any) -> ReadMark:
        bits = len(groups) * mark.mark.group_bits
        matches = bits - 8 if mark.shard == survivor else bits // 2
        return ReadMark(mark.shard, Reading(bits, matches), False)

    monkeypatch.setattr(screen, "read_mark", scrubbed)
    assert passes(chain, ArraySource({}), chosen)[0]


# In a search


def two_tensors(desk: Any, kit: Any, owner: Any, tmp_path: Path, issuer: Any) -> tuple[Any, Any]:
    """A chain in the two square matrices alone, and a model that carries it."""
    carrier = ["3.weight", "5.weight"]
    layout = kit.layout_of(owner.state)
    key = desk.person()
    path = desk.idle(tmp_path / "square", layout, by=key, shards=6, bits=256, carrier=carrier)
    model = owner.task.build_model()
    model.load_state_dict(owner.model.state_dict())
    kit.press_all(model, desk.claimant(path))
    kit.add_newest(path, model, key)
    return path, {name: value.numpy().copy() for name, value in model.state_dict().items()}


def test_swapped_names_do_not_hide_a_chain_from_the_screen(
    desk: Any, kit: Any, owner: Any, issuer: polo.Identity, tmp_path: Path
) -> None:
    path, state = two_tensors(desk, kit, owner, tmp_path, issuer)
    state["3.weight"], state["5.weight"] = state["5.weight"], state["3.weight"]
    model = kit.save(state, tmp_path / "found.safetensors")
    layout = kit.layout_of(owner.state)
    idle = [desk.idle(tmp_path / f"idle{at}", layout, shards=8) for at in range(5)]
    alone = ownership.identify(model, [path], trust=issuer.public_key)
    assert alone.finding is Finding.CLAIM
    among = ownership.identify(model, [path, *idle], trust=issuer.public_key)
    assert [claim.finding for claim in among.claims].count(Finding.CLAIM) == 1
    assert among.claims[0].proof == str(path)


def test_below_a_handful_of_chains_nothing_is_screened(
    desk: Any, kit: Any, owner: Any, look: Any, tmp_path: Path
) -> None:
    layout = kit.layout_of(owner.state)
    idle = [desk.idle(tmp_path / f"idle{at}", layout, shards=8) for at in range(3)]
    result = look(owner.state, *idle[:2])
    assert result.screen is None
    assert not any(claim.screened for claim in result.claims)
    screened = look(owner.state, *idle)
    assert screened.screen in (screen_of(BITS), screen_of(BITS * EARLY // MARKS))
    assert sum(claim.screened for claim in screened.claims) == 3
    assert screened.to_json()["screen"]["least_matches"] == screened.screen.least


@pytest.mark.slow
def test_screening_never_changes_who_is_named(
    desk: Any, kit: Any, owner: Any, issuer: polo.Identity, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two hundred chains, of which a few are in the model: whole, faded, or in part."""
    layout = kit.layout_of(owner.state)
    model = owner.task.build_model()
    model.load_state_dict(owner.model.state_dict())
    chains = [desk.idle(tmp_path / f"{at:03d}", layout, shards=6, bits=256) for at in range(200)]
    for path in chains[:3]:
        kit.press_all(model, desk.claimant(path), rounds=2)
    rng = np.random.default_rng(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.tensor(rng.normal(size=parameter.shape), dtype=parameter.dtype)
            parameter += 0.03 * parameter.std(correction=0) * noise
    found = kit.save(
        {n: v.numpy().copy() for n, v in model.state_dict().items()}, tmp_path / "f.safetensors"
    )
    # One of the chains shows five of its six marks only.
    (chains[1] / nonce_path(2)).unlink()
    proofs = [*chains, owner.path]
    screened = ownership.identify(found, proofs, trust=issuer.public_key)
    monkeypatch.setattr(identification, "SCREEN_FROM", 10**6)
    whole = ownership.identify(found, proofs, trust=issuer.public_key)
    standing = [
        {claim.proof for claim in result.claims if claim.finding is Finding.CLAIM}
        for result in (screened, whole)
    ]
    assert standing[0] == standing[1] == {*map(str, chains[:3]), str(owner.path)}
    assert sum(claim.screened for claim in screened.claims) > 190
    assert not any(claim.screened for claim in whole.claims)
    by_proof = {claim.proof: claim for claim in whole.claims}
    for claim in screened.claims:
        if not claim.screened:
            assert claim.log2_p == by_proof[claim.proof].log2_p


def test_a_hostile_proof_does_not_stop_the_search(
    desk: Any, kit: Any, owner: Any, look: Any, tmp_path: Path
) -> None:
    """Broken nonces, layouts and checkpoints among many chains."""
    layout = kit.layout_of(owner.state)
    idle = [desk.idle(tmp_path / f"idle{at}", layout, shards=8) for at in range(4)]
    (idle[0] / nonce_path(8)).write_bytes(b"{}")
    (idle[1] / "layout.json").write_bytes(b"{}")
    shutil.rmtree(idle[2] / "nonces")
    torn = tmp_path / "torn"
    shutil.copytree(owner.path, torn)
    newest = torn / checkpoint_path(len(ProofFolder(torn).manifest().shards))
    newest.write_bytes(newest.read_bytes()[:1000])
    result = look(owner.state, *idle, torn)
    by_proof = {claim.proof: claim for claim in result.claims}
    assert by_proof[str(owner.path)].finding is Finding.CLAIM
    assert by_proof[str(idle[0])].finding is not Finding.CLAIM
    assert by_proof[str(idle[1])].finding is Finding.UNDECIDED
    assert by_proof[str(idle[2])].finding is Finding.UNDECIDED
    assert by_proof[str(idle[3])].finding is Finding.NO_CLAIM
    # Without its newest checkpoint a proof still has its marks.
    assert by_proof[str(torn)].finding is Finding.CLAIM
