"""Marks in networks that never saw them: exactly chance, however they are read.

Every check below is two-sided or one-sided with a stated error rate, and every check has a control
in which the null is broken on purpose: there it must fail. Keys and networks are the same in every
run on one machine; on another one training rounds differently, and a check errs by chance in one
of `1 / ERROR` cases.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy import stats
from torch import nn

from polo import ownership
from polo.ownership import Finding
from polo.ownership.matching import MatchedSource, Matcher
from polo.ownership.reading import read_mark
from polo.ownership.sources import CheckpointSource, found_in
from polo.protocol.combination import CLAIM_LOG2_P, ReadMark, combine
from polo.protocol.detection import Reading, log2_tail
from polo.weights.checkpoint import checkpoint_of

pytestmark = pytest.mark.slow

ERROR = 1e-3
LEVELS = range(4, 11)
SEEDS = range(8)
KEYS = 240
BITS = 256


class Attention(nn.Module):
    """Rows of a digit as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        tokens = self.layer(self.embed(points.reshape(-1, 8, 8)))
        found: torch.Tensor = self.head(tokens.flatten(1))
        return found


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "convolution": convolution,
    "attention": Attention,
}


@dataclass(frozen=True)
class Network:
    """A trained network that nobody marked."""

    architecture: str
    seed: int
    model: nn.Module

    @property
    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Its weights."""
        return {name: value.numpy() for name, value in self.model.state_dict().items()}


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def trained(architecture: str, seed: int) -> Network:
    points, labels = digits()
    torch.manual_seed(seed)
    model = ARCHITECTURES[architecture]()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(3):
        for batch in torch.randperm(1500).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points[batch]), labels[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(points[1500:]).argmax(1) == labels[1500:]).double().mean()
    assert right > 0.6, "the null is about trained networks"
    return Network(architecture, seed, model)


@pytest.fixture(scope="module")
def networks() -> list[Network]:
    """24 networks of three architectures."""
    torch.set_num_threads(1)
    return [trained(name, seed) for name, seed in itertools.product(ARCHITECTURES, SEEDS)]


@pytest.fixture(scope="module")
def readings(
    networks: list[Network], issuer: Any, desks: Callable[[int], Any], tmp_path_factory: Any
) -> list[list[ReadMark]]:
    """All marks of a fresh chain in every network."""
    found = []
    for number, network in enumerate(networks):
        desk = desks(1000 + number)
        checkpoint = checkpoint_of(network.model)
        path = tmp_path_factory.mktemp("chain") / "proof"
        desk.idle(path, checkpoint.layout, shards=KEYS, live=True, bits=BITS)
        claimant = desk.claimant(path)
        source = CheckpointSource(checkpoint)
        found.append([read_mark(claimant, mark, source) for mark in claimant.marks()[0]])
    return found


# The checks


def check_tails(read: Sequence[Reading]) -> None:
    """Each of the rates of p ≤ 2^−4 … 2^−10 is what it must be; together wrong in `ERROR`."""
    bits = read[0].bits
    for level in LEVELS:
        least = next(m for m in range(bits + 1) if log2_tail(bits, m) <= -level)
        hits = sum(reading.log2_p <= -level for reading in read)
        # What a discrete distribution attains at this level is less than 2^−level.
        found = stats.binomtest(hits, len(read), 2.0 ** log2_tail(bits, least))
        assert found.pvalue > ERROR / len(LEVELS), f"{hits} of {len(read)} at 2^-{level}"


def check_binomial(read: Sequence[Reading]) -> None:
    """Matches are Binomial(n, ½): χ² over cells of at least 20 expected readings."""
    bits, count = read[0].bits, len(read)
    chances = stats.binom.pmf(np.arange(bits + 1), bits, 0.5)
    seen = np.bincount([reading.matches for reading in read], minlength=bits + 1)
    edges, filled = [0], 0.0
    for at, chance in enumerate(chances):
        filled += chance * count
        if filled >= 20:
            edges.append(at + 1)
            filled = 0.0
    edges[-1] = bits + 1
    cells = [slice(a, b) for a, b in itertools.pairwise(edges)]
    assert len(cells) > 10
    expected = np.array([chances[cell].sum() for cell in cells]) * count
    observed = np.array([seen[cell].sum() for cell in cells])
    assert stats.chisquare(observed, expected * (count / expected.sum())).pvalue > ERROR


def check_super_uniform(log2_ps: Sequence[float]) -> None:
    """No level 2^−1 … 2^−10 is reached more often than it may be; together wrong in `ERROR`."""
    levels = range(1, 11)
    for level in levels:
        hits = sum(value <= -level for value in log2_ps)
        found = stats.binomtest(hits, len(log2_ps), 2.0**-level, alternative="greater")
        assert found.pvalue > ERROR / len(levels), f"{hits} of {len(log2_ps)} at 2^-{level}"


def check_not_wasteful(log2_ps: Sequence[float]) -> None:
    """The levels 2^−1 … 2^−4 are reached at least half as often as they may be."""
    for level in range(1, 5):
        hits = sum(value <= -level for value in log2_ps)
        found = stats.binomtest(hits, len(log2_ps), 2.0**-level / 2, alternative="less")
        assert found.pvalue > ERROR, f"{hits} of {len(log2_ps)} at 2^-{level}"


def refuses(check: Callable[[Sequence[Any]], None], values: Sequence[Any]) -> bool:
    """Whether a check fails."""
    try:
        check(values)
    except AssertionError:
        return True
    return False


# One mark at a time


def test_single_marks_read_at_chance(readings: list[list[ReadMark]]) -> None:
    read = [mark.reading for chain in readings for mark in chain]
    assert len(readings) >= 20
    assert min(map(len, readings)) >= 100
    check_tails(read)
    check_binomial(read)
    check_super_uniform([reading.log2_p for reading in read])
    assert min(reading.log2_p for reading in read) > CLAIM_LOG2_P


def test_every_architecture_reads_at_chance(
    networks: list[Network], readings: list[list[ReadMark]]
) -> None:
    for name in ARCHITECTURES:
        chains = [c for c, network in zip(readings, networks, strict=True)
                  if network.architecture == name]  # fmt: skip
        check_binomial([mark.reading for chain in chains for mark in chain])


@pytest.mark.parametrize("bias", [0.01, 0.02])
def test_control_a_slight_bias_of_the_bits_is_seen(
    readings: list[list[ReadMark]], bias: float
) -> None:
    """Bits that match with a chance of 0.51 or 0.52."""
    drawing = np.random.default_rng(3)
    read = [mark.reading for chain in readings for mark in chain]
    biased = [
        Reading(r.bits, r.matches + int(drawing.binomial(r.bits - r.matches, 2 * bias)))
        for r in read
    ]
    assert abs(np.mean([r.eta for r in biased]) - 0.5 - bias) < 0.002
    assert refuses(check_binomial, biased)
    assert refuses(check_tails, biased)


def test_control_a_bias_on_some_networks_only_is_seen(readings: list[list[ReadMark]]) -> None:
    """As if a twelfth of the networks remembered the marks a little: η = 0.58 there."""
    drawing = np.random.default_rng(4)
    read = [mark.reading for chain in readings for mark in chain]
    few = len(read) // 12
    leaky = [Reading(r.bits, int(drawing.binomial(r.bits, 0.58))) for r in read[:few]] + read[few:]
    assert refuses(check_tails, leaky)


def test_control_a_key_that_is_used_again_is_seen(
    networks: list[Network], desks: Callable[[int], Any], tmp_path: Path
) -> None:
    """The same mark read KEYS times from a network: as many readings, but only one try."""
    desk = desks(77)
    repeated = []
    for number, network in enumerate(networks):
        checkpoint = checkpoint_of(network.model)
        path = desk.idle(tmp_path / str(number), checkpoint.layout, shards=1, bits=BITS)
        claimant = desk.claimant(path)
        reading = read_mark(claimant, claimant.mark(1), CheckpointSource(checkpoint)).reading
        repeated += [reading] * KEYS
    assert refuses(check_binomial, repeated)


# Chains


def cut(readings: list[list[ReadMark]], length: int) -> list[list[ReadMark]]:
    """Chains of so many marks; all are independent."""
    return [
        chain[at : at + length]
        for chain in readings
        for at in range(0, len(chain) - length + 1, length)
    ]


@pytest.mark.parametrize("length", [2, 8, 30])
def test_chains_of_live_marks_are_at_chance(readings: list[list[ReadMark]], length: int) -> None:
    combined = [combine(chain) for chain in cut(readings, length)]
    check_super_uniform(combined)
    check_not_wasteful(combined)
    assert min(combined) > CLAIM_LOG2_P


def test_chains_of_offline_marks_are_far_below_chance(readings: list[list[ReadMark]]) -> None:
    """2^64 tries are granted, and here none were used."""
    granted = [ReadMark(m.shard, m.reading, False) for chain in readings for m in chain]
    assert {combine(chain) for chain in cut([granted], 8)} == {0.0}
    assert refuses(check_not_wasteful, [combine(chain) for chain in cut([granted], 8)])


def test_control_the_sum_of_logarithms_alone_is_no_chance(readings: list[list[ReadMark]]) -> None:
    """Multiplying p-values, as if that gave one."""
    product = [math.fsum(mark.log2_p for mark in chain) for chain in cut(readings, 8)]
    assert refuses(check_super_uniform, product)


def test_control_the_best_of_many_chains_needs_its_correction(
    readings: list[list[ReadMark]],
) -> None:
    chains = [combine(chain) for chain in cut(readings, 2)]
    tried = 16
    best = [min(chains[at : at + tried]) for at in range(0, len(chains) - tried + 1, tried)]
    assert refuses(check_super_uniform, best)
    check_super_uniform([min(0.0, value + math.log2(tried)) for value in best])


def test_control_showing_the_lucky_marks_needs_its_correction(
    readings: list[list[ReadMark]],
) -> None:
    lucky = [[m for m in chain if m.reading.eta > 0.5] for chain in cut(readings, 30)]
    assert refuses(check_super_uniform, [combine(chain) for chain in lucky])


# Found models whose tensors are told by content, and aligned ones


def renamed(network: Network, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """A model whose tensors have lost their names and their order."""
    state = network.state
    order = np.random.default_rng(seed).permutation(len(state))
    return {f"z{at}": np.ascontiguousarray(list(state.values())[at]) for at in order}


@pytest.fixture(scope="module")
def marked(
    networks: list[Network], desks: Callable[[int], Any], kit: Any, tmp_path_factory: Any
) -> list[tuple[str, Path, nn.Module]]:
    """Chains whose newest checkpoint carries all their marks: what content is compared with."""
    made = []
    for name, number in itertools.product(ARCHITECTURES, range(4)):
        desk = desks(500 + len(made))
        model = trained(name, 100 + number).model
        path = tmp_path_factory.mktemp("marked") / "proof"
        layout = checkpoint_of(model).layout
        key = desk.person()
        desk.idle(path, layout, shards=4, by=key, live=True, bits=BITS)
        kit.press_all(model, desk.claimant(path))
        kit.add_newest(path, model, key)
        made.append((name, path, model))
    return made


def matched(
    networks: list[Network], marked: list[tuple[str, Path, nn.Module]], issuer: Any, folder: Path
) -> list[Any]:
    """Every chain looked for in every unrelated network of its architecture, names lost."""
    claims = []
    for number, network in enumerate(networks):
        model = folder / f"{number}.safetensors"
        save_file(renamed(network, number), model)
        proofs = [path for name, path, _ in marked if name == network.architecture]
        for proof in proofs:
            found = ownership.identify(model, [proof], trust=issuer.public_key)
            claims.append(found.claims[0])
    return claims


def test_matched_by_content_unrelated_networks_read_at_chance(
    networks: list[Network], marked: Any, issuer: Any, tmp_path: Path
) -> None:
    claims = matched(networks, marked, issuer, tmp_path)
    assert len(claims) == len(networks) * 4
    assert all(claim.tries.log2_matchings > 1 for claim in claims)
    assert all(claim.coverage == 1.0 for claim in claims)
    check_super_uniform([claim.log2_p for claim in claims])
    assert {claim.finding for claim in claims} == {Finding.NO_CLAIM}


def test_matched_by_content_the_marked_network_is_found(
    marked: Any, issuer: Any, tmp_path: Path
) -> None:
    for name, path, model in marked[::4]:
        found = tmp_path / f"{name}.safetensors"
        save_file(renamed(Network(name, 0, model), 5), found)
        claim = ownership.identify(found, [path], trust=issuer.public_key).claims[0]
        assert claim.finding is Finding.CLAIM, claim.sentence()
        assert claim.eta > 0.95


def many_small(count: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Many tensors of one shape, a block each; their names say nothing."""
    drawing = np.random.default_rng(seed)
    return {f"z{at:03d}": drawing.normal(size=(16, 16)).astype(np.float32) for at in range(count)}


@pytest.fixture(scope="module")
def made_from_marks(
    desks: Callable[[int], Any], kit: Any, tmp_path_factory: Any
) -> Callable[[int, int], Path]:
    """A chain over many small tensors whose newest checkpoint is made of nothing but its mark.

    Nobody checks that checkpoint's root before content is compared with it, so a claimant may
    choose it; then likeness to it is likeness to the mark.
    """

    def make(count: int, seed: int) -> Path:
        desk = desks(seed)
        key = desk.person()
        names = {f"w{at:03d}": value for at, value in enumerate(many_small(count, 0).values())}
        path = tmp_path_factory.mktemp("small") / "proof"
        layout = checkpoint_of(names).layout
        desk.idle(path, layout, shards=1, by=key, live=True, bits=32 * count)
        claimant = desk.claimant(path)
        mark = claimant.mark(1).mark
        state = {}
        for group, block in enumerate(mark.blocks):
            wanted = 2.0 * mark.bits[group] - 1
            tensor = layout.tensors[claimant.carrier.locate(block).tensor]
            values = (wanted @ mark.signs(group)).astype(np.float32).reshape(tensor.shape)
            state[tensor.name] = values
        kit.add_newest(path, state, key)
        return path

    return make


def test_a_reference_made_of_the_mark_gains_no_more_than_is_charged(
    made_from_marks: Callable[[int, int], Path], issuer: Any, tmp_path: Path
) -> None:
    """Without the charge an unmarked model would be claimed, and absurdly so."""
    model = tmp_path / "found.safetensors"
    save_file(many_small(64, 9), model)
    claim = ownership.identify(model, [made_from_marks(64, 1)], trust=issuer.public_key).claims[0]
    assert claim.tries.log2_matchings == pytest.approx(math.log2(math.factorial(64)) + 64 + 1)
    assert claim.log2_combined < CLAIM_LOG2_P
    assert claim.eta > 0.55
    assert claim.log2_p == 0
    assert claim.finding is Finding.NO_CLAIM


def test_matching_to_the_mark_itself_stays_below_chance_once_charged(
    made_from_marks: Callable[[int, int], Path], issuer: Any, tmp_path: Path
) -> None:
    """Few tensors, so that the charge is small; the control is the same without it."""
    claims = []
    for seed in range(25):
        proof = made_from_marks(4, 200 + seed)
        for number in range(6):
            model = tmp_path / f"{seed}-{number}.safetensors"
            save_file(many_small(5, 1000 * seed + number), model)
            found = ownership.identify(model, [proof], trust=issuer.public_key)
            claims.append(found.claims[0])
    check_super_uniform([claim.log2_p for claim in claims])
    assert refuses(check_super_uniform, [claim.log2_combined for claim in claims])


# Aligned readings. A place for every kind of reference: whether it is fair, and what it is.


def check_fair(read: Sequence[Reading]) -> None:
    """All bits together: as many match as do not, two-sided."""
    bits, matches = sum(r.bits for r in read), sum(r.matches for r in read)
    assert stats.binomtest(matches, bits).pvalue > ERROR, f"{matches} of {bits}"


@dataclass(frozen=True)
class Aligning:
    """A checkpoint W_{x-1}, the mark x that derives from it, and W_x, which carries it."""

    claimant: Any
    before: nn.Module
    after: nn.Module


ALIGNED = {
    "W_{x-1}": (lambda made: made.before, True),
    "W_x": (lambda made: made.after, False),
}


@pytest.fixture(scope="module", params=["dense", "convolution"])
def aligning(
    request: pytest.FixtureRequest, desks: Callable[[int], Any], kit: Any, tmp_path_factory: Any
) -> tuple[str, list[Aligning]]:
    """Marks that fill most of the carrier, each derived from a trained network."""
    name, made = request.param, []
    for number in range(4):
        desk = desks(900 + number)
        before = trained(name, 300 + number).model
        checkpoint = checkpoint_of(before)
        path = tmp_path_factory.mktemp("aligning") / "proof"
        desk.idle(path, checkpoint.layout, shards=1, bits=1536, stored={0: checkpoint})
        after = ARCHITECTURES[name]().eval()
        after.load_state_dict(before.state_dict())
        claimant = desk.claimant(path)
        kit.press_all(after, claimant, rounds=1)
        made.append(Aligning(claimant, before, after))
    return name, made


@pytest.mark.parametrize("kind", ALIGNED)
def test_aligned_unrelated_networks_read_at_chance_where_the_reference_is_older_than_the_mark(
    networks: list[Network], aligning: tuple[str, list[Aligning]], kind: str
) -> None:
    """To the marked checkpoint itself they do not, which is why it is never the reference."""
    from polo.alignment import align, trace
    from polo.ownership.sources import ArraySource

    choose, fair = ALIGNED[kind]
    name, made = aligning
    wiring = trace(ARCHITECTURES[name]().eval(), (torch.zeros(2, 64),))
    found = []
    for one in made:
        reference = Network(name, 0, choose(one)).state
        index = one.claimant.layout.index
        for network in (n for n in networks if n.architecture == name):
            arrays = align(network.state, reference, wiring).arrays
            source = ArraySource({index[n]: v for n, v in arrays.items()})
            found.append(read_mark(one.claimant, one.claimant.mark(1), source).reading)
    if fair:
        check_fair(found)
        check_super_uniform([reading.log2_p for reading in found])
    else:
        assert refuses(check_fair, found)


@pytest.mark.full
@pytest.mark.parametrize("how", ["aligned", "matched"])
def test_every_network_reads_at_chance_after_alignment_or_matching(
    networks: list[Network], desks: Callable[[int], Any], tmp_path: Path, how: str
) -> None:
    """As many networks and keys as read plainly; the reference was there before the marks."""
    from polo.alignment import align, trace
    from polo.ownership.sources import ArraySource

    read: list[Reading] = []
    older = {name: trained(name, 300) for name in ARCHITECTURES}
    wirings = {n: trace(make().eval(), (torch.zeros(2, 64),)) for n, make in ARCHITECTURES.items()}
    for number, network in enumerate(networks):
        reference = checkpoint_of(older[network.architecture].model)
        path = tmp_path / str(number)
        desks(1200 + number).idle(path, reference.layout, shards=KEYS, live=True, bits=BITS)
        claimant = desks(1200 + number).claimant(path)
        source: Any
        if how == "aligned":
            wiring = wirings[network.architecture]
            arrays = align(network.state, older[network.architecture].state, wiring).arrays
            index = claimant.layout.index
            source = ArraySource({index[name]: values for name, values in arrays.items()})
        else:
            found = found_in(checkpoint_of(renamed(network, number)))
            source = MatchedSource(found, Matcher(found).match(claimant.carrier, reference))
        read += [read_mark(claimant, mark, source).reading for mark in claimant.marks()[0]]
    assert len(networks) >= 20
    assert len(read) >= 100 * len(networks)
    check_tails([reading for reading in read if reading.bits == BITS])
    check_binomial([reading for reading in read if reading.bits == BITS])
    assert min(reading.log2_p for reading in read) > -64
