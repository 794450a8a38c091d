"""One model against many chains: who is named, how exactly, how surely, and what it survives."""

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from polo.errors import PoloError
from polo.ownership import Finding, scan
from polo.ownership.claimant import DerivedMark
from polo.ownership.looking import SEED, STAGES, Looker
from polo.ownership.matching import MatchedSource, Matcher
from polo.ownership.reading import read_mark
from polo.ownership.scan import Chain, Kind, Lot
from polo.ownership.screen import ETA, screen_of
from polo.protocol import derivation
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import SchemeTerms
from polo.watermark import batch
from polo.watermark.mark import Mark
from polo.watermark.schemes import SCHEMES
from polo.weights.found import open_found

State = Mapping[str, np.ndarray[Any, Any]]
PRESSED = ["ednn", "ednn-mean", "fedipr", "fedipr-kernel", "riga", "signed"]


def layout_of(state: State) -> Layout:
    kinds = {"float32": "F32", "float64": "F64", "float16": "F16"}
    tensors = [Tensor(n, kinds[str(v.dtype)], v.shape) for n, v in sorted(state.items())]
    return Layout(CHUNK_BYTES, tuple(tensors), ())


def terms_of(name: str, **changes: Any) -> SchemeTerms:
    own = SCHEMES[name].defaults
    load = round(own.load * 1_000_000)
    made = SchemeTerms(name, own.bits, own.block, load, "block", 1000, own.reduction, 1)
    return dataclasses.replace(made, **changes)


def random_state(seed: int = 0, rows: int = 256) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {f"{at}.weight": rng.normal(size=(rows, 128)).astype(np.float32) for at in range(3)}


def kind_of(state: State, terms: SchemeTerms) -> Kind:
    return Kind(layout_of(state), tuple(sorted(state)), terms)


def strangers(count: int, marks: int = 20, seed: int = 1) -> list[Chain]:
    drawn = random.Random(seed)
    return [Chain(f"stranger {at}", drawn.randbytes(SEED * marks)) for at in range(count)]


def slowly(kind: Kind, chain: Chain, source: Any) -> list[Any]:
    """Every mark as the rest of the library reads it."""
    read = []
    for at in range(len(chain.seeds) // SEED):
        seed = chain.seeds[SEED * at : SEED * (at + 1)]
        blocks = derivation.positions(seed, kind.scheme.blocks, kind.carrier.blocks)
        mark = Mark(kind.scheme, blocks, seed)
        read.append(read_mark(kind, DerivedMark(at + 1, mark, True), source).reading)
    return read


def test_every_built_in_scheme_is_tried_here() -> None:
    assert sorted(SCHEMES) == PRESSED


# Exactness


HOSTILE = {
    "plain": lambda rng, values: values,
    "zero": lambda rng, values: values * 0,
    "one weight in ten": lambda rng, values: values * (rng.random(values.shape) < 0.1),
    "all alike": lambda rng, values: values * 0 + 0.5,
    "huge": lambda rng, values: values * 1e37,
    "tiny": lambda rng, values: values * 1e-42,
    "of all sizes": lambda rng, values: values * 10.0 ** rng.integers(-30, 30, values.shape),
    "small integers": lambda rng, values: np.rint(values),
    "with holes": lambda rng, values: np.where(rng.random(values.shape) < 0.001, np.nan, values),
    "infinite": lambda rng, values: values / 0.0 * np.sign(values),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("made", HOSTILE)
@pytest.mark.parametrize(
    "terms",
    [
        *(terms_of(name) for name in SCHEMES),
        terms_of("ednn", block=2048, load=10_000, bits=200),
        terms_of("ednn", block=16, load=500_000, bits=64),
        terms_of("signed", block=64, load=1_000_000),
        terms_of("ednn", key="dense"),
        terms_of("riga", key="dense", bits=128),
        terms_of("ednn-mean", key="dense", bits=64),
        terms_of("ednn-mean", block=2048, load=15_625, bits=256),
        terms_of("riga", block=512, load=250_000, bits=256),
    ],
    ids=lambda terms: f"{terms.name}-{terms.block}-{terms.key}",
)
def test_it_reads_to_the_bit_what_everything_else_reads(
    terms: SchemeTerms, made: str, kit: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(4)
    plain = random_state(5)
    kind = kind_of(plain, terms)
    state = {n: HOSTILE[made](rng, v.astype(np.float64)).astype(v.dtype) for n, v in plain.items()}
    del state["1.weight"]
    state["0.weight"] = state["0.weight"].astype(np.float64)
    model = kit.save(state, tmp_path / "found.safetensors")
    with open_found(model) as found:
        matching = Matcher(found).match(kind.carrier, None)
        looker = Looker(found, kind.carrier, terms, matching)
        for chain in strangers(2, marks=3):
            source = MatchedSource(found, matching)
            assert list(looker.read(chain.seeds)) == slowly(kind, chain, source)


def test_a_carrier_too_large_to_keep_is_read_alike(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = random_state(6)
    kind = kind_of(state, terms_of("ednn"))
    with open_found(kit.save(state, tmp_path / "found.safetensors")) as found:
        matching = Matcher(found).match(kind.carrier, None)
        make = [found, kind.carrier, kind.scheme, matching]
        chain = strangers(1)[0].seeds
        kept = Looker(*make).read(chain)
        monkeypatch.setattr("polo.ownership.looking.KEPT", 0)
        assert Looker(*make).read(chain) == kept


@pytest.mark.parametrize("blocks", [64, 65, 100, 1000, 2**33 + 5])
def test_blocks_are_those_of_the_specification(blocks: int) -> None:
    """Whatever has to be skipped: with few blocks hardly a mark is drawn without repetition."""
    shape = batch.Shape(terms_of("ednn", bits=2048), blocks)
    drawn = random.Random(3)
    seeds = [drawn.randbytes(32) for _ in range(50)]
    groups = np.array([drawn.sample(range(64), 5) for _ in seeds])
    found = batch.places(shape, seeds, groups)
    for at, seed in enumerate(seeds):
        every = derivation.positions(seed, 64, blocks)
        assert found[at, :, 0].tolist() == [every[group] for group in groups[at]]


def test_words_that_the_specification_drops_are_dropped() -> None:
    """With any number of blocks that a model can have, hardly one word ever is; here a quarter."""
    shape = batch.Shape(terms_of("ednn", bits=256), 2**62 + 2**61)
    seeds = [random.Random(at).randbytes(32) for at in range(40)]
    found = batch.places(shape, seeds, np.tile(np.arange(8), (40, 1)))
    for at, seed in enumerate(seeds):
        assert found[at, :, 0].tolist() == list(derivation.positions(seed, 8, shape.blocks))


# Who is named


def wide_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 512), nn.BatchNorm1d(2048), nn.Linear(512, 128), nn.BatchNorm1d(2048)
    )


@pytest.mark.parametrize("name", PRESSED)
def test_a_marked_model_is_found_among_strangers(
    name: str, desk: Any, kit: Any, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    model = wide_model()
    layout = kit.layout_of({n: v.numpy() for n, v in model.state_dict().items()})
    path = desk.idle(tmp_path / "chain", layout, shards=4, live=True, scheme=name)
    owner = desk.claimant(path)
    kit.press_all(model, owner)
    found = kit.save(
        {n: v.numpy().copy() for n, v in model.state_dict().items()}, tmp_path / "f.safetensors"
    )
    terms = owner.manifest.terms
    kind = Kind(owner.layout, terms.carrier, terms.scheme)
    seeds = b"".join(mark.mark.seed for mark in owner.marks()[0])
    chains = [*strangers(150, marks=4), Chain("owner", seeds, owner=owner.owner)]
    result = scan.scan(found, [Lot(kind, chains)])
    assert [claim.proof for claim in result.standing] == ["owner"]
    assert result.standing[0].owner == owner.owner
    assert result.standing[0].tries.chains == result.chains == 151
    alone = scan.scan(found, [Lot(kind, chains[-1:])]).standing[0]
    assert result.standing[0].log2_p == pytest.approx(alone.log2_p + np.log2(151))
    assert scan.scan(found, [Lot(kind, chains[:-1])]).standing == ()


def test_a_real_chain_is_named_as_identify_names_it(
    owner: Any, desk: Any, kit: Any, look: Any, stranger: Any, tmp_path: Path
) -> None:
    claimant = desk.claimant(owner.path)
    terms = claimant.manifest.terms
    kind = Kind(claimant.layout, terms.carrier, terms.scheme)
    seeds = b"".join(mark.mark.seed for mark in claimant.marks()[0])
    lot = Lot(kind, [Chain("owner", seeds, live=False), *strangers(50, marks=8)])
    found = kit.save(owner.state, tmp_path / "found.safetensors")
    claim = scan.scan(found, [lot]).standing[0]
    assert claim.marks == look(owner.state).claims[0].marks
    other = {n: v.numpy().copy() for n, v in stranger.state_dict().items()}
    assert scan.scan(kit.save(other, tmp_path / "o.safetensors"), [lot]).standing == ()


def test_chains_of_other_layouts_are_looked_for_as_far_as_the_model_has_their_tensors(
    kit: Any, tmp_path: Path
) -> None:
    state = random_state(7)
    model = kit.save(state, tmp_path / "found.safetensors")
    elsewhere = {f"other.{name}.kernel": value[:, :64] for name, value in state.items()}
    longer = {f"model.{name}": value for name, value in state.items()}
    lots = [
        Lot(kind_of(state, terms_of("ednn")), strangers(3)),
        Lot(kind_of(elsewhere, terms_of("ednn")), strangers(5)),
        Lot(kind_of(longer, terms_of("signed")), strangers(7)),
    ]
    result = scan.scan(model, lots)
    assert (result.chains, result.absent, result.standing) == (15, 5, ())


@pytest.mark.parametrize("turned", [False, True])
def test_renamed_tensors_are_found_by_shape_and_order(
    turned: bool, kit: Any, tmp_path: Path
) -> None:
    state = {f"{at}.weight": value for at, value in enumerate(random_state(16).values(), start=8)}
    state["head"] = random_state(17, rows=64)["0.weight"]
    kind = kind_of(state, terms_of("signed"))
    chains = strangers(100, marks=4)
    press_signed(state, kind, chains[50])
    renamed = {f"m.{n.replace('.weight', '.k')}": v for n, v in state.items()} | {
        "more": np.zeros((7, 7), np.float32)
    }
    if turned:
        renamed = {name: np.ascontiguousarray(value.T) for name, value in renamed.items()}
    model = kit.save(renamed, tmp_path / "found.safetensors")
    (claim,) = scan.scan(model, [Lot(kind, chains)]).standing
    assert (claim.proof, claim.coverage) == ("stranger 50", 1.0)
    # Where more tensors have the shape than the chain has, nobody can tell which is which.
    decoy = random_state(18)["0.weight"]
    renamed["m.decoy"] = np.ascontiguousarray(decoy.T) if turned else decoy
    unclear = kit.save(renamed, tmp_path / "decoy.safetensors")
    again = scan.scan(unclear, [Lot(kind, chains)])
    assert all(claim.coverage < 0.2 for claim in again.claims)


def test_processes_find_what_one_finds(kit: Any, tmp_path: Path) -> None:
    state = random_state(8)
    kind = kind_of(state, terms_of("signed", block=64, load=500_000))
    chains = strangers(1600, marks=6)
    press_signed(state, kind, chains[1234])
    model = kit.save(state, tmp_path / "found.safetensors")
    one = scan.scan(model, [Lot(kind, chains)], workers=1, entropy=5)
    two = scan.scan(model, [Lot(kind, chains)], workers=2, entropy=5)
    assert one == two
    assert [claim.proof for claim in two.standing] == ["stranger 1234"]


def press_signed(state: State, kind: Kind, chain: Chain, wrong: float = 0.0, seed: int = 1) -> None:
    """Write a chain's marks; scheme signed, whose bits are signs of single weights."""
    from polo.watermark.signed import places

    rng = np.random.default_rng(seed)
    for at in range(len(chain.seeds) // SEED):
        seed_ = chain.seeds[SEED * at : SEED * (at + 1)]
        blocks = derivation.positions(seed_, kind.scheme.blocks, kind.carrier.blocks)
        mark = Mark(kind.scheme, blocks, seed_)
        for group, block in enumerate(blocks):
            where = kind.carrier.locate(block)
            flat = state[kind.layout.tensors[where.tensor].name].reshape(-1)
            spots = where.element + places(mark, group)
            right = mark.bits[group] ^ (rng.random(mark.group_bits) < wrong)
            flat[spots] = np.abs(flat[spots]) * np.where(right, 1, -1)


# How surely


def test_the_looks_have_the_power_that_is_asked_for() -> None:
    assert scan.power(ETA) == pytest.approx(
        1 - sum(stats.binom.cdf(screen_of(s.bits).least - 1, s.bits, ETA) for s in STAGES)
    )
    assert scan.power(ETA) > 0.999
    assert scan.false_pass() < 1e-9


def test_strangers_get_through_each_look_as_often_as_computed(kit: Any, tmp_path: Path) -> None:
    """In weights of any kind: here most are the same."""
    state = {name: np.sign(value).astype(np.float32) for name, value in random_state(9).items()}
    model = kit.save(state, tmp_path / "found.safetensors")
    terms = terms_of("signed", block=64, load=500_000)
    chains = strangers(4000, marks=20)
    result = scan.scan(model, [Lot(kind_of(state, terms), chains)], workers=1, entropy=3)
    left = len(chains)
    for passed, stage in zip(result.through, STAGES, strict=True):
        if left > 20:
            chance = screen_of(stage.bits).false_pass
            assert stats.binomtest(passed, left, chance).pvalue > 1e-3
        left = passed


@pytest.mark.slow
def test_weak_marks_get_through_as_surely_as_computed(kit: Any, tmp_path: Path) -> None:
    """Sixty chains at η 0.62 in one model, looked for again and again."""
    state = random_state(10, rows=4096)
    kind = kind_of(state, terms_of("signed", block=64, load=500_000))
    chains = strangers(60, marks=12)
    for at, chain in enumerate(chains):
        press_signed(state, kind, chain, wrong=1 - ETA, seed=at)
    model = kit.save(state, tmp_path / "found.safetensors")
    through = [
        scan.scan(model, [Lot(kind, chains)], workers=1, entropy=at).through for at in range(12)
    ]
    passed, total = sum(last for *_, last in through), 60 * len(through)
    assert stats.binomtest(passed, total, scan.power(), alternative="less").pvalue > 1e-3


def test_one_mark_that_survived_alone_gets_through(kit: Any, tmp_path: Path) -> None:
    state = random_state(11)
    kind = kind_of(state, terms_of("signed"))
    chain = strangers(1, marks=3)[0]
    press_signed(state, kind, Chain("first", chain.seeds[:SEED]))
    model = kit.save(state, tmp_path / "found.safetensors")
    assert scan.scan(model, [Lot(kind, [chain])]).through == (1, 1, 1)


def test_what_has_too_few_bits_to_be_screened_is_read(kit: Any, tmp_path: Path) -> None:
    state = random_state(12)
    model = kit.save(state, tmp_path / "found.safetensors")
    few = kind_of(state, terms_of("ednn", bits=64))
    chains = [Chain("short", bytes(SEED)), Chain("none", b"")]
    result = scan.scan(model, [Lot(few, chains)])
    assert {claim.proof: claim.bits for claim in result.claims} == {"short": 64, "none": 0}
    assert {claim.finding for claim in result.claims} <= {Finding.NO_CLAIM, Finding.UNDECIDED}


# Hostile files


@pytest.mark.parametrize("cut", [0, 7, 100, 5000])
def test_a_broken_file_is_refused(cut: int, kit: Any, tmp_path: Path) -> None:
    state = random_state(13)
    model = kit.save(state, tmp_path / "found.safetensors")
    model.write_bytes(model.read_bytes()[:cut])
    with pytest.raises(PoloError):
        scan.scan(model, [Lot(kind_of(state, terms_of("ednn")), strangers(2))])


def test_a_kind_that_cannot_be_read_does_not_stop_the_others(kit: Any, tmp_path: Path) -> None:
    state = random_state(14)
    model = kit.save(state, tmp_path / "found.safetensors")
    unknown = dataclasses.replace(terms_of("ednn"), name="of-another-package")
    lots = [
        Lot(kind_of(state, terms_of("ednn", bits=2**17)), strangers(1)),
        Lot(kind_of(state, unknown), strangers(2)),
        Lot(kind_of(state, terms_of("ednn")), strangers(3)),
    ]
    result = scan.scan(model, lots)
    assert (result.chains, result.absent) == (6, 3)


def test_seeds_do_not_show(kit: Any) -> None:
    chain = strangers(1)[0]
    assert chain.seeds.hex()[:16] not in repr(
        Lot(kind_of(random_state(), terms_of("ednn")), [chain])
    )
    assert repr(chain) == "Chain('stranger 0', 20 marks)"
