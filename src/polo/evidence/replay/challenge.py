"""Drawing: which segments and sealings a verifier wants to see again.

The draw comes after the record is signed and from the verifier's own randomness, so that a prover
cannot know which segments may be faked. The first segment and the largest moves are always in it:
one large jump would otherwise hide among thousands of segments.

Specification: docs/protocol.md, section 17.6.
"""

import itertools
import math
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from polo.errors import ChainError, LimitError
from polo.evidence.replay import platform
from polo.evidence.replay.timeline import Timeline
from polo.protocol import canonical
from polo.protocol.challenge import MAX_PLACES, Challenge
from polo.storage import atomic
from polo.storage.bundle import opened
from polo.storage.folder import ProofFolder
from polo.weights.files import open_plain

_RANDOM = secrets.SystemRandom()


def draw(proof: str | Path, *, ends: bool | None = None, device: str | None = None) -> Challenge:
    """Draw a challenge from a proof.

    Args:
        proof: The proof folder, or the verifier's bundle.
        ends: Whether to ask for the states at the ends, too; by default where some shard was
            trained on another platform than this one.
        device: Where the segments will be run again; by default where they were trained, if such
            a device is here.
    """
    with opened(Path(proof)) as folder:
        files = ProofFolder(folder)
        manifest = files.manifest()
        timeline = Timeline.load(files, manifest)
    if ends is None:
        platforms = {record.platform for record in timeline.records.values()}
        ends = any(_elsewhere(trained, device) for trained in platforms)
    return draw_from(timeline, ends=ends)


def _elsewhere(trained: str, device: str | None) -> bool:
    """Whether something was trained on another platform than it will be run again on."""
    with platform.adopted(trained):
        here = platform.describe(platform.device_for(trained, device))
    return bool(platform.same(platform.parse(trained, "record"), here))


def draw_from(timeline: Timeline, *, ends: bool) -> Challenge:
    """Draw a challenge from the records of a chain."""
    recipe, total, shards = timeline.recipe, timeline.segments, list(timeline.scope)
    if not total:
        raise ChainError(
            "there is no sealed shard yet, so there is nothing to draw from",
            advice="Draw when the prover has closed the proof.",
        )
    numbers = _RANDOM.sample(range(total), min(recipe.draws, total))
    drawn = {timeline.place(number) for number in numbers} | timeline.required()
    if len(drawn) > MAX_PLACES:
        raise LimitError(f"the terms ask for {len(drawn)} segments; at most {MAX_PLACES}")
    sealings = set(_RANDOM.sample(shards, min(recipe.seals, len(shards))))
    sealings |= timeline.required_sealings()
    return Challenge(
        timeline.bound,
        tuple(sorted(drawn)),
        tuple(sorted(sealings)),
        ends,
        int(time.time()),
    )


def save(challenge: Challenge, path: str | Path) -> None:
    """Write a challenge for the prover."""
    atomic.write(Path(path), challenge.to_bytes())


def load(path: str | Path) -> Challenge:
    """Read a challenge."""
    with open_plain(Path(path)) as file:
        data = file.read(canonical.MAX_DOCUMENT_BYTES + 1)
    return Challenge.from_bytes(data, str(path))


def escape(fraction: float, drawn: int, total: int) -> float:
    """Chance that so many draws miss a fraction of all segments that was faked.

    Drawn without putting back, so at most (1 − fraction)^drawn.

    >>> round(escape(0.1, 44, 1000), 4), escape(0.1, 1000, 1000)
    (0.0087, 0.0)
    """
    return overlooked(math.ceil(fraction * total), drawn, total)


def overlooked(faked: int, drawn: int, total: int) -> float:
    """Chance that so many draws out of all segments miss each of the faked ones.

    >>> overlooked(1, 5, 10), overlooked(6, 5, 10)
    (0.5, 0.0)
    """
    if drawn > total - faked:
        return 0.0 if faked else 1.0
    return math.prod((total - faked - at) / (total - at) for at in range(drawn))


def fewest(share: float, steps: Sequence[int], every: int) -> int:
    """Fewest segments that hold a share of all steps: the last one of a shard may be short.

    Args:
        share: The share.
        steps: Steps of each shard.
        every: Steps of a whole segment.

    >>> fewest(0.1, [1600], 16), fewest(0.1, [17] * 10, 16), fewest(0.5, [3, 9], 16)
    (10, 2, 1)
    """
    wanted = math.ceil(share * sum(steps))
    whole = sum(each // every for each in steps)
    if whole * every >= wanted:
        return -(-wanted // every)
    held = itertools.accumulate(
        sorted((each % every for each in steps), reverse=True), initial=whole * every
    )
    return whole + next(count for count, total in enumerate(held) if total >= wanted)
