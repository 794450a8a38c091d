"""Looks at some bits of many chains of one kind, in one model, and reads in full what is left.

Three looks follow each other, each at fresh bits that the system's randomness draws, each longer
than the one before. A stranger's chain costs little more than the first one.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polo.ownership.matching import MatchedSource, Matching
from polo.ownership.screen import ALONE, BITS, screen_of
from polo.protocol.carrier import Carrier
from polo.protocol.detection import Reading, log2_tail
from polo.protocol.records import SchemeTerms
from polo.watermark.batch import Shape, matches, places
from polo.weights.found_model import FoundModel, Values

SEED = 32

KEPT = 2**28
"""Bytes of the carrier that are kept in memory; a larger one is read block by block."""

_CELLS = 2**18
"""Weights gathered at a time."""

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Stage:
    """One look: marks of each chain, and bits of all of them together."""

    marks: int
    bits: int


STAGES = (Stage(3, 384), Stage(6, 768), Stage(12, 1536))
"""The looks. A stranger passes the first with a chance of about a fifth, all with 6e-12."""


@dataclass(frozen=True)
class Looked:
    """What came of some chains.

    Attributes:
        through: How many chains each look let through.
        read: What was read of every mark of those that came through all; by place of the chain.
    """

    through: tuple[int, ...]
    read: tuple[tuple[int, tuple[Reading, ...]], ...]


class Looker:
    """Looks for chains of one kind.

    Args:
        found: The model.
        carrier: The carrier of the chains' marks.
        scheme: How marks are read.
        matching: Where the model has the carrier's tensors.
    """

    def __init__(
        self, found: FoundModel, carrier: Carrier, scheme: SchemeTerms, matching: Matching
    ) -> None:
        self._blocks = _Blocks(carrier, MatchedSource(found, matching))
        self._shape = Shape(scheme, carrier.blocks)

    @property
    def at_once(self) -> int:
        """Chains that are best looked at together."""
        cells = max(1, STAGES[0].bits // self._shape.group_bits) * self._shape.group_weights
        return max(1, _CELLS // cells)

    def look(self, chains: Sequence[bytes], draw: np.random.Generator) -> Looked:
        """Look for chains, each given by the seeds of its marks one after the other."""
        left, through = list(range(len(chains))), []
        for stage in STAGES:
            for marks in sorted({min(stage.marks, len(chains[at]) // SEED) for at in left}):
                own = [at for at in left if min(stage.marks, len(chains[at]) // SEED) == marks]
                past = self._pass([chains[at] for at in own], marks, stage.bits, draw)
                gone = {at for at, passed in zip(own, past, strict=True) if not passed}
                left = [at for at in left if at not in gone]
            through.append(len(left))
        return Looked(tuple(through), tuple((at, self.read(chains[at])) for at in left))

    def read(self, chain: bytes) -> tuple[Reading, ...]:
        """Every mark of a chain, as far as its weights are there."""
        seeds = _seeds(chain, range(len(chain) // SEED))
        every = np.arange(self._shape.groups)
        step = max(1, _CELLS // (self._shape.groups * self._shape.group_weights))
        found: list[Reading] = []
        for at in range(0, len(seeds), step):
            part = seeds[at : at + step]
            bits, right = self._count(part, np.tile(every, (len(part), 1)))
            found += map(Reading, bits.tolist(), right.tolist())
        return tuple(found)

    def _pass(
        self, chains: list[bytes], marks: int, bits: int, draw: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Which chains get through one look; one without marks, or too few bits, does."""
        if not marks:
            return np.ones(len(chains), dtype=np.bool_)
        seeds = [
            seed
            for chain in chains
            for seed in _seeds(chain, draw.permutation(len(chain) // SEED)[:marks].tolist())
        ]
        each = min(self._shape.groups, -(-bits // marks // self._shape.group_bits))
        drawn = np.argsort(draw.random((len(seeds), self._shape.groups)), axis=1)
        asked, right = self._count(seeds, drawn[:, :each])
        alone = (right >= _over(_alone, asked)).reshape(len(chains), marks).any(axis=1)
        bits_read = asked.reshape(len(chains), marks).sum(axis=1)
        least = _over(lambda count: screen_of(count).least, bits_read)
        enough = right.reshape(len(chains), marks).sum(axis=1) >= least
        passed: NDArray[np.bool_] = alone | enough | (bits_read < BITS // 4)
        return passed

    def _count(self, seeds: list[bytes], groups: Integers) -> tuple[Integers, Integers]:
        """Bits that can be read in some groups of every mark, and how many of them match."""
        shape = self._shape
        where = places(shape, seeds, groups)
        values, there = self._blocks.take(where.reshape(-1))
        readable = np.asarray(there.reshape(-1, shape.group_blocks).any(axis=1))
        each = np.repeat(np.arange(len(seeds)), groups.shape[1])[readable].tolist()
        values = values.reshape(len(readable), -1)
        right = np.zeros(len(readable), dtype=np.int64)
        right[readable] = matches(
            shape,
            [seeds[at] for at in each],
            groups.reshape(-1)[readable],
            values if readable.all() else values[readable],
        ).sum(axis=1)
        bits = shape.group_bits * readable.reshape(groups.shape).sum(axis=1)
        return bits, right.reshape(groups.shape).sum(axis=1)


class _Blocks:
    """The blocks of a carrier as a model has them."""

    def __init__(self, carrier: Carrier, source: MatchedSource) -> None:
        self._carrier = carrier
        self._source = source
        sizes = [carrier.layout.tensors[at].elements // carrier.block for at in carrier.tensors]
        self._first = np.cumsum([0, *sizes])
        self._keep = 8 * carrier.blocks * carrier.block <= KEPT
        self._tensor = functools.cache(self._whole)

    def take(self, blocks: Integers) -> tuple[Values, NDArray[np.bool_]]:
        """Blocks as rows, and which of them are there and finite; the others are zero."""
        rows = np.zeros((len(blocks), self._carrier.block))
        there = np.zeros(len(blocks), dtype=np.bool_)
        tensors = np.searchsorted(self._first, blocks, side="right") - 1
        for at in np.unique(tensors).tolist():
            own = np.flatnonzero(tensors == at)
            found = self._rows(at, blocks[own] - self._first[at])
            if found is not None:
                rows[own], there[own] = found, np.isfinite(found).all(axis=1)
        rows[~there] = 0
        return rows, there

    def _rows(self, at: int, wanted: Integers) -> Values | None:
        if self._keep:
            whole = self._tensor(at)
            return None if whole is None else whole[wanted]
        return self._read(at, wanted)

    def _whole(self, at: int) -> Values | None:
        block, count = self._carrier.block, int(self._first[at + 1] - self._first[at])
        found = self._source.weights(self._carrier.tensors[at], 0, count * block)
        return None if found is None else found.reshape(count, block)

    def _read(self, at: int, wanted: Integers) -> Values | None:
        block, tensor = self._carrier.block, self._carrier.tensors[at]
        each, back = np.unique(wanted, return_inverse=True)
        found = [
            self._source.weights(tensor, one * block, (one + 1) * block) for one in each.tolist()
        ]
        there = [row for row in found if row is not None]
        return np.stack(there)[back] if len(there) == len(found) else None


def _seeds(chain: bytes, marks: Sequence[int]) -> list[bytes]:
    return [chain[SEED * at : SEED * (at + 1)] for at in marks]


def _over(rule: Callable[[int], int], counts: Integers) -> Integers:
    """A rule for every count; most are alike."""
    each, back = np.unique(counts, return_inverse=True)
    return np.array([rule(count) for count in each.tolist()], dtype=np.int64)[back]


@functools.lru_cache(maxsize=1024)
def _alone(bits: int) -> int:
    """Matches of one mark that let its chain through whatever the others say."""
    least = next((n for n in range(bits + 1) if log2_tail(bits, n) <= ALONE), bits + 1)
    return least
