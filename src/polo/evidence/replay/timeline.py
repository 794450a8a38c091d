"""The records of a whole chain, one after the other, and what must hold before anything is run.

Segments lie end to end: the end of one is the start of the next, across shards through the
sealing. Whoever would leave steps out must break a digest, and a verifier who draws a segment
finds out.

Specification: docs/protocol.md, sections 17.5 and 17.6.
"""

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from polo.checks import Check, Status, counted
from polo.errors import FormatError, LimitError, TermsError
from polo.evidence.replay.recipe import Recipe
from polo.evidence.replay.record import MAX_SEGMENTS, Record, load, segments_of, span_of
from polo.evidence.replay.state import MOVE_ONE, NO_STATE, SATURATED
from polo.protocol.challenge import Place
from polo.protocol.records import Manifest
from polo.storage.folder import ProofFolder, evidence_path

LEVEL = "replay"


@dataclass(frozen=True)
class Span:
    """The steps of one segment.

    Attributes:
        place: The segment.
        first: Its first step within the shard, from 0.
        steps: How many steps it has.
    """

    place: Place
    first: int
    steps: int


class Timeline:
    """Every recorded boundary of a chain.

    Args:
        manifest: What the proof says, or what was committed to so far.
        recipe: How its steps are done.
        records: The records, by shard.
        leaf: Leaf of the newest shard's entry, where a registry draws while the chain grows. Then
            this shard alone can be drawn from, and challenges name the leaf instead of the proof.

    Attributes:
        scope: Shards that can be drawn from.
    """

    def __init__(
        self,
        manifest: Manifest,
        recipe: Recipe,
        records: dict[int, Record],
        *,
        leaf: bytes | None = None,
    ) -> None:
        self.manifest = manifest
        self.recipe = recipe
        self.records = records
        self._leaf = leaf
        self.scope = tuple(records) if leaf is None else tuple(records)[-1:]
        self._before = [0, *itertools.accumulate(shard.steps for shard in manifest.shards)]
        # Segments in scope before each shard.
        counts = (records[shard].segments for shard in self.scope)
        self._until = [0, *itertools.accumulate(counts)]

    @classmethod
    def load(cls, folder: ProofFolder, manifest: Manifest, *, leaf: bytes | None = None) -> Self:
        """Read the records of a proof; one that is not as the manifest says is refused."""
        recipe = recipe_of(manifest)
        records: dict[int, Record] = {}
        total = 0
        for number, shard in enumerate(manifest.shards, start=1):
            place = evidence_path(LEVEL, number)
            if not shard.steps:
                raise FormatError("a shard without a step has nothing to record", place=place)
            segments = segments_of(shard.steps, recipe.every)
            total += segments
            if total > MAX_SEGMENTS:
                raise LimitError(f"more than {MAX_SEGMENTS} segments in the chain", place=place)
            record = load(folder.file(place), segments, place)
            if shard.evidence.get(LEVEL) != record.digest:
                raise FormatError("is not the record that the shard commits to", place=place)
            records[number] = record
        return cls(manifest, recipe, records, leaf=leaf)

    @property
    def bound(self) -> bytes:
        """What a challenge names: the proof, or the leaf that the newest shard has in a log."""
        return self.manifest.digest if self._leaf is None else self._leaf

    @property
    def segments(self) -> int:
        """Number of segments that can be drawn."""
        return self._until[-1]

    def place(self, number: int) -> Place:
        """A segment by its number among those that can be drawn, from 0."""
        at = bisect_right(self._until, number) - 1
        return Place(self.scope[at], number - self._until[at])

    def has(self, place: Place) -> bool:
        """Whether there is such a segment, and it can be drawn."""
        record = self.records.get(place.shard) if place.shard in self.scope else None
        return record is not None and place.segment < record.segments

    @property
    def steps(self) -> int:
        """Steps of the shards that can be drawn from."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Steps of each of them."""
        return [self.manifest.shards[shard - 1].steps for shard in self.scope]

    def before(self, shard: int) -> int:
        """Steps of the whole chain before a shard."""
        return self._before[shard - 1]

    def span(self, place: Place) -> Span:
        """The steps of a segment."""
        steps = self.manifest.shards[place.shard - 1].steps
        first, count = span_of(place.segment, steps, self.recipe.every)
        return Span(place, first, count)

    def whole(self, place: Place) -> bool:
        """Whether a segment has a full batch; the last one of a pass over the data may be short."""
        last, short = divmod(self.recipe.samples, self.recipe.batch)
        span = self.span(place)
        steps = range(span.first, span.first + span.steps)
        return not short or any(step % (last + 1) != last for step in steps)

    def required(self) -> set[Place]:
        """Segments that are always run again: the first one, and the largest moves of each kind.

        With each large move of the model comes the segment before it. A made-up momentum sets the
        weights moving only in the segment after the one that was faked to get it, and that one
        is right in itself.
        """
        moves = [pair for shard in self.scope for pair in self.records[shard].moves[:-1]]
        return {self.place(number) for number in always(moves, self.recipe.top)}

    def required_sealings(self) -> set[int]:
        """The sealing with the largest move, which is always run again."""
        moves = {shard: self.records[shard].moves[-1][0] for shard in self.scope}
        return {max(moves, key=moves.__getitem__)} if moves else set()

    def checks(self) -> Iterator[Check]:
        """What must hold of the records alone."""
        faults: dict[int, list[str]] = {}
        for shard, detail in (*self._links(), *self._repeats(), *self._endless()):
            faults.setdefault(shard, []).append(detail)
        for shard, record in self.records.items():
            figures: dict[str, float | int | str] = {
                "segments": record.segments,
                "steps": self.manifest.shards[shard - 1].steps,
                "largest": max((model for model, _ in record.moves[:-1]), default=0) / MOVE_ONE,
            }
            fine = f"{counted(record.segments, 'segment')} lie end to end, no state comes twice"
            status = Status.FAILED if shard in faults else Status.PASSED
            for detail in faults.get(shard, [fine]):
                yield Check("record", status, detail, shard, figures=figures, level=LEVEL)

    def _links(self) -> Iterator[tuple[int, str]]:
        rest = NO_STATE
        for shard, record in self.records.items():
            if record.boundaries[0].rest != rest:
                wanted = f"what shard {shard - 1} ended with"
                wanted = wanted if shard > 1 else "that of an untouched optimizer"
                yield shard, f"the optimizer's state at its start is not {wanted}"
            rest = record.boundaries[-1].rest

    def _endless(self) -> Iterator[tuple[int, str]]:
        """Moves without measure: weights that are no numbers stay so, whatever is trained on."""
        for shard, record in self.records.items():
            for at, (model, _) in enumerate(record.moves):
                if model == SATURATED:
                    yield shard, f"the weights moved endlessly far in its segment {at}"
                    break

    def _repeats(self) -> Iterator[tuple[int, str]]:
        seen: dict[bytes, tuple[int, int]] = {}
        for shard, record in self.records.items():
            for at, boundary in enumerate(record.boundaries):
                first = seen.setdefault(boundary.model, (at, shard))
                # Without noise a sealing may leave the weights of a settled mark as they are.
                idle = (
                    not at and shard > 1 and first == (self.records[shard - 1].segments, shard - 1)
                )
                if first != (at, shard) and not idle:
                    earlier = f"boundary {first[0]} of shard {first[1]}"
                    yield shard, f"the model at its boundary {at} is that of {earlier} again"
                    break


def always(moves: Iterable[tuple[int, int]], top: int) -> set[int]:
    """Numbers of the segments that are run again whatever is drawn, by the moves of all of them.

    >>> sorted(always([(1, 9), (1, 1), (1, 1), (5, 1)], 1))
    [0, 2, 3]
    """
    pairs = list(moves)
    wanted = {0} if pairs else set()
    for kind in (0, 1):
        numbered = enumerate(pair[kind] for pair in pairs)
        for number, _ in heapq.nlargest(top, numbered, key=lambda found: found[1]):
            wanted |= {number} if kind else {number, max(0, number - 1)}
    return wanted


def recipe_of(manifest: Manifest) -> Recipe:
    """What the terms say about level replay."""
    for item in manifest.terms.evidence:
        if item.level == LEVEL:
            return Recipe.from_settings(item.settings, "terms.evidence.replay")
    raise TermsError("the terms do not ask for replay, so no step was recorded", place="terms")
