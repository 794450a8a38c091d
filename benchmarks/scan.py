"""One model against ten thousand chains: how long it takes, how it grows, how surely it looks.

Chains are seeds and nothing else, which is all that a scan takes; all but one are drawn. The marks
of that one are written into a model of ResNet-18's carrier.
"""

import itertools
import resource
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.figures import Benchmark, Figure, Target, amount_of, time_of
from benchmarks.identify import share
from benchmarks.idle import MARKS
from benchmarks.measure import interleave, spread
from benchmarks.resnet import ResNetDigits
from polo.ownership import scan as scanning
from polo.ownership.claimant import DerivedMark
from polo.ownership.looking import SEED, STAGES, Looker
from polo.ownership.matching import MatchedSource, Matcher
from polo.ownership.reading import read_mark
from polo.ownership.scan import Chain, Kind, Lot
from polo.ownership.screen import BITS, EARLY, ETA, screen_of
from polo.ownership.screen import MARKS as SCREENED
from polo.protocol import derivation
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import SchemeTerms
from polo.watermark.capacity import capacity
from polo.watermark.mark import Mark
from polo.watermark.schemes import SCHEMES
from polo.watermark.signed import places
from polo.weights import checkpoint_of
from polo.weights.found import open_found

CHAINS = 10_000
GROWTH = (100, 1000, 10_000, 100_000)
OTHERS = ("signed", "fedipr-kernel", "ednn-mean", "riga")
BITS_OF_A_MARK = 2048
ONE_BY_ONE = 40
WEAK_CHAINS, WEAK_DRAWS = 100, 200

_TIME = Target("at most", 5.0)
_POWER = Target("at least", 0.999)
_SLOW = "the same chains one by one"


class Stage:
    """A marked model as a file, and strangers without end."""

    def __init__(self, folder: Path) -> None:
        state = ResNetDigits().build_model().state_dict()
        self._state = {name: value.numpy().copy() for name, value in state.items()}
        self.layout = checkpoint_of(self._state).layout
        self.model = folder / "model.safetensors"
        self.owner = Chain("owner", secrets.token_bytes(SEED * MARKS))
        kind = self.kind("signed")
        _press(self._state, kind, self.owner, 1.0)
        save_file(self._state, self.model)

    def kind(self, scheme: str) -> Kind:
        """Marks of 2048 bits in whatever of the model carries them."""
        own = SCHEMES[scheme].defaults
        names = capacity(self.layout, block=own.block, scheme=scheme).names
        return Kind(self.layout, names, terms_of(scheme))

    def strangers(self, count: int) -> list[Chain]:
        """Drawn chains."""
        drawing = np.random.default_rng()
        return [Chain(str(at), drawing.bytes(SEED * MARKS)) for at in range(count)]


def terms_of(scheme: str) -> SchemeTerms:
    """A scheme as terms ask for it by default, with marks of 2048 bits."""
    own = SCHEMES[scheme].defaults
    load = round(own.load * 1_000_000)
    return SchemeTerms(scheme, BITS_OF_A_MARK, own.block, load, "block", 1000, own.reduction, 1)


def run(quick: bool) -> Iterator[Figure]:
    """Time, growth, other schemes, then how surely."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        sizes = (100, 2000) if quick else GROWTH
        chains, rounds = (2000, 1) if quick else (CHAINS, 5)
        yield from one_scan(stage, chains, rounds)
        yield found_among(stage, chains)
        for size in sizes:
            yield growth(stage, size, 1 if quick or size > CHAINS else 3)
        for scheme in OTHERS:
            yield other_scheme(stage, scheme, chains // 5, 1 if quick else 3)
        yield from first_look(stage, chains)
    yield from power(*((3, 20) if quick else (WEAK_CHAINS, WEAK_DRAWS)))


def one_scan(stage: Stage, chains: int, rounds: int) -> Iterator[Figure]:
    """The usual scheme, against what a screen of one chain after the other takes."""
    kind = stage.kind("ednn")
    lot, few = Lot(kind, stage.strangers(chains)), stage.strangers(ONE_BY_ONE)
    with open_found(stage.model) as found:
        source = MatchedSource(found, Matcher(found).match(kind.carrier, None))
        samples = interleave(
            {
                _SLOW: lambda: _one_by_one(kind, few, source),
                "scan": lambda: scanning.scan(stage.model, [lot]),
            },
            rounds,
        )
    samples[_SLOW] = [seconds * chains / len(few) for seconds in samples[_SLOW]]
    yield time_of(
        f"{chains} chains in one model",
        samples,
        "scan",
        _SLOW,
        target=_TIME,
        note=f"ResNet-18, EDNN, {MARKS} marks of {BITS_OF_A_MARK} bits a chain, all cores, start "
        f"of the processes included; one by one is extrapolated from {len(few)} chains, of which "
        f"{EARLY} marks are looked at",
    )


def found_among(stage: Stage, chains: int) -> Figure:
    """An owner among so many, by the whole way."""
    kind = stage.kind("signed")
    lot = Lot(kind, [*stage.strangers(chains - 1), stage.owner])
    result = scanning.scan(stage.model, [lot])
    named = [claim.proof for claim in result.standing]
    if named != ["owner"]:
        raise RuntimeError(f"{named} were named instead of the owner")
    return amount_of(
        f"the owner among {chains} chains, corrected for all of them",
        "log2 p",
        [result.standing[0].log2_p],
        note=f"scheme signed, {MARKS} marks; let through by the looks: {result.through}",
    )


def growth(stage: Stage, chains: int, rounds: int) -> Figure:
    """Time against the number of chains; beside it what a chain takes of a core."""
    lot = Lot(stage.kind("ednn"), stage.strangers(chains))
    used: list[float] = []

    def timed() -> None:
        before = _cpu()
        scanning.scan(stage.model, [lot])
        used.append(_cpu() - before)

    samples = interleave({"scan": timed}, rounds)
    return Figure(
        f"growth: {chains} chains",
        "s",
        spread(samples["scan"]),
        samples=samples,
        details={"chains": chains, "core_seconds": float(np.median(used))},
    )


def other_scheme(stage: Stage, scheme: str, chains: int, rounds: int) -> Figure:
    """Time with marks of another scheme."""
    lot = Lot(stage.kind(scheme), stage.strangers(chains))
    samples = interleave({"scan": lambda: scanning.scan(stage.model, [lot])}, rounds)
    name = f"{chains} chains, scheme {scheme}"
    return Figure(name, "s", spread(samples["scan"]), samples=samples)


def first_look(stage: Stage, chains: int) -> Iterator[Figure]:
    """How many strangers the first look lets through, computed and counted."""
    lot = Lot(stage.kind("ednn"), stage.strangers(chains))
    result = scanning.scan(stage.model, [lot])
    name = "strangers that the first look lets through"
    computed = screen_of(STAGES[0].bits).false_pass
    yield Figure(
        f"{name}, measured",
        "of the chains",
        share(result.through[0], chains),
        note=f"{result.through[0]} of {chains}; {result.through[1]} came through the second look, "
        f"{result.through[2]} through the third; the interval is that of Clopper and Pearson",
        details={"computed": computed, "through_all_computed": scanning.false_pass()},
    )


def power(chains: int, draws: int) -> Iterator[Figure]:
    """How surely a chain gets through whose bits are right with probability 0.62."""
    yield amount_of(
        f"power of the looks at η {ETA:g}, computed",
        "of the chains",
        [scanning.power()],
        target=_POWER,
        note="; ".join(f"{screen_of(s.bits).least} of {s.bits} bits" for s in STAGES),
    )
    through, rates = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(chains):
            passed, rate = _weak(Path(folder), seed, draws)
            through += passed
            rates.append(rate)
    total = chains * draws
    yield Figure(
        f"power of the looks at η {ETA:g}, measured",
        "of the chains",
        share(through, total),
        target=_POWER,
        note=f"{through} of {total} draws got through, on {chains} chains whose marks were written "
        "into drawn weights; the interval is that of Clopper and Pearson",
        details={"mean_η_pressed": float(np.mean(rates))},
    )


def _weak(folder: Path, seed: int, draws: int) -> tuple[int, float]:
    """One chain of weak marks, looked for many times."""
    drawing = np.random.default_rng(seed)
    state = {f"{at}": drawing.normal(size=(512, 1024)).astype(np.float32) for at in range(4)}
    tensors = tuple(Tensor(name, "F32", value.shape) for name, value in sorted(state.items()))
    kind = Kind(Layout(CHUNK_BYTES, tensors, ()), tuple(sorted(state)), terms_of("signed"))
    chain = Chain("weak", drawing.bytes(SEED * STAGES[-1].marks))
    _press(state, kind, chain, ETA, seed)
    path = folder / f"{seed}.safetensors"
    save_file(state, path)
    with open_found(path) as found:
        looker = Looker(found, kind.carrier, kind.scheme, Matcher(found).match(kind.carrier, None))
        read = looker.read(chain.seeds)
        looked = looker.look([chain.seeds] * draws, np.random.default_rng())
    path.unlink()
    return looked.through[-1], sum(r.matches for r in read) / sum(r.bits for r in read)


def _press(state: dict[str, Any], kind: Kind, chain: Chain, rate: float, seed: int = 0) -> None:
    """Write marks of scheme signed, of whose bits so many are right."""
    drawing = np.random.default_rng(seed)
    for at in range(0, len(chain.seeds), SEED):
        mark = _mark(kind, chain.seeds[at : at + SEED])
        right = np.arange(kind.scheme.bits) < round(rate * kind.scheme.bits)
        wanted = mark.bits ^ ~drawing.permutation(right).reshape(mark.bits.shape)
        for group, block in enumerate(mark.blocks):
            where = kind.carrier.locate(block)
            flat = state[kind.layout.tensors[where.tensor].name].reshape(-1)
            spots = where.element + places(mark, group)
            flat[spots] = np.abs(flat[spots]) * np.where(wanted[group], 1, -1)


def _one_by_one(kind: Kind, chains: list[Chain], source: MatchedSource) -> None:
    """A screen of one chain after the other, mark by mark, as far as most strangers come."""
    for chain, at in itertools.product(chains, range(EARLY)):
        mark = _mark(kind, chain.seeds[SEED * at : SEED * (at + 1)])
        groups = range(BITS // SCREENED // mark.group_bits)
        read_mark(kind, DerivedMark(at + 1, mark, True), source, groups)


def _mark(kind: Kind, seed: bytes) -> Mark:
    blocks = derivation.positions(seed, kind.scheme.blocks, kind.carrier.blocks)
    return Mark(kind.scheme, blocks, seed)


def _cpu() -> float:
    """Seconds of cores that this process and those that ended have used."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


BENCHMARK = Benchmark("scan", "one model against the marks of many chains", run)
