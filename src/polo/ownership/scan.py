"""One model against the marks of very many chains.

    result = scan(Path("found.safetensors"), lots)
    [claim.proof for claim in result.standing]

Chains come as seeds, in lots of one layout, carrier and scheme. Some looks at few bits
(`polo.ownership.looking`) let through what might be there; that is read in full. Every look is
exact, and the chance that it misses a chain is computed (`power`). Whoever ends up with a claim has
been read once more, mark by mark, by what reads any other claimant.

Several processes do the work. A model can be hostile: nothing in it makes a chain cost more than a
full reading of it, and what cannot be read counts as absent.
"""

import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polo.errors import CapacityError, TermsError
from polo.ownership.claim import Claim, Finding, Tries
from polo.ownership.claimant import DerivedMark
from polo.ownership.looking import SEED, STAGES, Looked, Looker
from polo.ownership.matching import MatchedSource, Matcher, Matching
from polo.ownership.ordering import with_order
from polo.ownership.reading import read_mark
from polo.ownership.screen import ETA, screen_of
from polo.protocol import derivation
from polo.protocol.carrier import Carrier
from polo.protocol.combination import ReadMark
from polo.protocol.detection import Reading
from polo.protocol.layout import Layout
from polo.protocol.records import SchemeTerms
from polo.watermark.mark import Mark, check_scheme
from polo.weights.found import open_found
from polo.weights.found_model import FoundModel

POOL_FROM = 1500
"""Chains from which on further processes are worth their start."""


@dataclass(frozen=True)
class Kind:
    """What the chains of a lot have in common.

    Attributes:
        layout: The layout of their checkpoints.
        names: Tensors that carry marks.
        scheme: How marks are read.
    """

    layout: Layout
    names: tuple[str, ...]
    scheme: SchemeTerms

    @functools.cached_property
    def carrier(self) -> Carrier:
        """The tensors that hold the marks; refused if they cannot hold one."""
        check_scheme(self.scheme)
        carrier = Carrier(self.layout, self.names, self.scheme.block)
        if carrier.blocks < self.scheme.blocks:
            raise CapacityError(f"a mark takes {self.scheme.blocks} of {carrier.blocks} blocks")
        return carrier


@dataclass(frozen=True)
class Chain:
    """A chain to look for. Confidential: who knows a seed knows where its mark sits.

    Attributes:
        name: What the claim will be called by.
        seeds: Seeds of its marks, 32 bytes each, from shard 1 on.
        live: Whether each nonce was issued after the checkpoint before was in the log.
        owner: Whose it is.
    """

    name: str
    seeds: bytes
    live: bool = True
    owner: str = ""

    def __repr__(self) -> str:
        return f"Chain({self.name!r}, {len(self.seeds) // SEED} marks)"


@dataclass(frozen=True)
class Lot:
    """Chains of one kind."""

    kind: Kind
    chains: Sequence[Chain]


@dataclass(frozen=True)
class Scan:
    """What came of it.

    Attributes:
        description: What kind of file the model is.
        chains: Chains that were looked for; every claim is corrected for all of them.
        absent: Those among them that could not be looked for: the model has no tensor of their
            carrier, or their scheme is not installed.
        through: How many chains each look let through, one after the other.
        claims: What was read in full, the strongest first.
    """

    description: str
    chains: int
    absent: int
    through: tuple[int, ...]
    claims: tuple[Claim, ...]

    @property
    def standing(self) -> tuple[Claim, ...]:
        """The claims that stand."""
        return tuple(claim for claim in self.claims if claim.finding is Finding.CLAIM)


def power(eta: float = ETA) -> float:
    """Chance that a chain whose bits match at this rate gets through all looks, at least."""
    return 1 - sum(1 - screen_of(stage.bits).power(eta) for stage in STAGES)


def false_pass() -> float:
    """Chance that a chain that is not in the model gets through all looks."""
    chance = 1.0
    for stage in STAGES:
        chance *= screen_of(stage.bits).false_pass
    return chance


def scan(
    model: Path, lots: Sequence[Lot], *, workers: int | None = None, entropy: int | None = None
) -> Scan:
    """Look for the marks of many chains in one model.

    Args:
        model: A safetensors or GGUF file, or a folder of safetensors.
        lots: The chains.
        workers: Processes to use; by default one for each core.
        entropy: What the looks are drawn from, for tests; by default the system's randomness.

    Raises:
        PoloError: The model cannot be read.
    """
    draw = np.random.default_rng(entropy)
    total = sum(len(lot.chains) for lot in lots)
    with open_found(model) as found:
        search = _Search(found, [lot.kind for lot in lots])
        jobs = [job for at, lot in enumerate(lots) for job in search.jobs(at, lot, draw)]
        present = sum(len(job.chains) for job in jobs)
        count = (os.cpu_count() or 1) if workers is None else workers
        if count > 1 and present >= POOL_FROM:
            done = list(_spread(model, search.kinds, jobs, count))
        else:
            done = [search.look(job) for job in jobs]
        claims = [
            search.claim(job.lot, lots[job.lot].chains[job.first + at], readings, total)
            for job, looked in zip(jobs, done, strict=True)
            for at, readings in looked.read
        ]
        claims.sort(key=lambda claim: (claim.finding, claim.log2_p))
        through = tuple(sum(looked.through[at] for looked in done) for at in range(len(STAGES)))
        return Scan(found.description, total, total - present, through, tuple(claims))


@dataclass(frozen=True)
class _Job:
    """Some chains of a lot, from its `first` on."""

    lot: int
    first: int
    chains: tuple[bytes, ...]
    entropy: tuple[int, ...]


class _Search:
    """One model against lots."""

    def __init__(self, found: FoundModel, kinds: list[Kind]) -> None:
        self.kinds = kinds
        self._found = found
        self._matcher = Matcher(found)
        self._matchings: dict[int, Matching] = {}
        self._lookers: dict[int, Looker] = {}

    def jobs(self, lot: int, chains: Lot, draw: np.random.Generator) -> Iterator[_Job]:
        """A lot in pieces; none where the model has nothing of the carrier."""
        try:
            if not self._matching(lot).matches:
                return
            step = self._looker(lot).at_once
        except (CapacityError, TermsError):
            # One kind whose scheme is not installed here must not keep all others from being read.
            return
        for at in range(0, len(chains.chains), step):
            part = tuple(chain.seeds for chain in chains.chains[at : at + step])
            yield _Job(lot, at, part, tuple(draw.integers(0, 2**63, 4).tolist()))

    def look(self, job: _Job) -> Looked:
        """Look for the chains of a job."""
        return self._looker(job.lot).look(job.chains, np.random.default_rng(job.entropy))

    def claim(self, lot: int, chain: Chain, readings: Sequence[Reading], chains: int) -> Claim:
        """A chain that was read in full; what would stand is read again, mark by mark."""
        matching = self._matching(lot)
        claim = Claim(
            chain.name,
            chain.owner,
            marks=_marks(chain, readings),
            tries=Tries(chains),
            coverage=matching.coverage,
            how="tensors matched by name, shape and order",
        )
        if claim.finding is not Finding.CLAIM:
            return claim
        again = self._read_again(lot, chain)
        if again != claim.marks:
            raise AssertionError(f"{chain.name}: two ways of reading do not agree")
        return claim

    def _read_again(self, lot: int, chain: Chain) -> tuple[ReadMark, ...]:
        kind = self.kinds[lot]
        source = MatchedSource(self._found, self._matching(lot))
        marks = []
        for at in range(len(chain.seeds) // SEED):
            seed = chain.seeds[SEED * at : SEED * (at + 1)]
            blocks = derivation.positions(seed, kind.scheme.blocks, kind.carrier.blocks)
            derived = DerivedMark(at + 1, Mark(kind.scheme, blocks, seed), chain.live)
            marks.append(read_mark(kind, derived, source))
        return tuple(marks)

    def _matching(self, lot: int) -> Matching:
        if lot not in self._matchings:
            carrier = self.kinds[lot].carrier
            named = self._matcher.match(carrier, None)
            self._matchings[lot] = with_order(named, carrier, self._found)
        return self._matchings[lot]

    def _looker(self, lot: int) -> Looker:
        if lot not in self._lookers:
            kind = self.kinds[lot]
            # One at a time is kept: each may hold a carrier's weights.
            self._lookers = {
                lot: Looker(self._found, kind.carrier, kind.scheme, self._matching(lot))
            }
        return self._lookers[lot]


def _marks(chain: Chain, readings: Sequence[Reading]) -> tuple[ReadMark, ...]:
    numbered = enumerate(readings, start=1)
    return tuple(ReadMark(shard, reading, chain.live) for shard, reading in numbered)


def _spread(model: Path, kinds: list[Kind], jobs: list[_Job], workers: int) -> Iterator[Looked]:
    """The jobs' results in order, by other processes."""
    # Threads of the caller may hold locks, so nothing is forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (model, kinds)) as pool:
        yield from pool.map(_look, jobs)


_here: _Search | None = None
"""In a process of the pool: its own view of the model."""


def _begin(model: Path, kinds: list[Kind]) -> None:
    global _here
    _here = _Search(open_found(model), kinds)


def _look(job: _Job) -> Looked:
    assert _here is not None
    return _here.look(job)
