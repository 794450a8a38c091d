"""What was asked for: whether a challenge fits a proof, and what an answer to it shows.

Specification: docs/protocol.md, sections 17.6 and 17.10.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from polo.checks import Check, Status, counted, numbered, probability
from polo.evidence.receipts.rules import replays
from polo.evidence.replay.challenge import fewest, overlooked
from polo.evidence.replay.timeline import LEVEL, Timeline
from polo.protocol.challenge import Challenge, Place
from polo.protocol.detection import MILLION

SHORTCUT = 0.10
"""The share of faked steps that verdicts state the chance of escape for."""


def undrawn() -> Check:
    """Nothing was asked for."""
    return Check(
        "draw",
        Status.UNDECIDED,
        "nothing was drawn yet, so no step was run again",
        level=LEVEL,
        advice="Draw segments (polo challenge PROOF --out challenge.json), let the prover "
        "answer (polo answer), then verify with --challenge and --answer.",
    )


def elsewhere() -> Check:
    """Steps were drawn before, by the registry; whoever is not the registry did not see it."""
    return Check(
        "draw",
        Status.UNDECIDED,
        "the registry drew steps while the chain grew; what came of it is not in the proof",
        level=LEVEL,
        advice="Ask for the registry's signed verdict; or, if all checkpoints were kept, draw "
        "segments yourself: polo challenge PROOF --out challenge.json.",
    )


def unfit(challenge: Challenge, timeline: Timeline) -> Check | None:
    """Why a challenge does not fit the proof, if so."""
    recipe, total, shards = timeline.recipe, timeline.segments, len(timeline.scope)
    unknown = [place for place in challenge.segments if not timeline.has(place)]
    strange = [shard for shard in challenge.sealings if shard not in timeline.scope]
    missing = sorted(timeline.required() - set(challenge.segments))
    detail = ""
    if challenge.proof != timeline.bound:
        detail = "the challenge was drawn from another proof, or an earlier state of this one"
    elif unknown:
        detail = f"the challenge asks for {unknown[0]}, which the proof does not have"
    elif strange:
        detail = f"the challenge asks for the sealing of shard {strange[0]}, which there is not"
    elif missing:
        detail = f"the challenge leaves out {missing[0]}: it is the first one, one of the largest "
        detail += "moves, or before one of them"
    elif not timeline.required_sealings() <= set(challenge.sealings):
        detail = "the challenge leaves out the sealing with the largest move"
    elif len(challenge.segments) < min(recipe.draws, total):
        detail = f"the challenge asks for {counted(len(challenge.segments), 'segment')}, fewer "
        detail += f"than the {recipe.draws} of the terms"
    elif len(challenge.sealings) < min(recipe.seals, shards):
        detail = f"the challenge asks for {counted(len(challenge.sealings), 'sealing')}, fewer "
        detail += f"than the {recipe.seals} of the terms"
    if not detail:
        return None
    advice = "Draw a new one with polo challenge, and ask the prover why the proof changed."
    return Check("draw", Status.UNDECIDED, detail, advice=advice, level=LEVEL)


def immodest(challenge: Challenge, timeline: Timeline) -> str:
    """Why a prover need not answer a challenge: it asks for less or more than the terms say."""
    if found := unfit(challenge, timeline):
        return found.detail
    most = min(timeline.recipe.draws, timeline.segments) + len(timeline.required())
    if len(challenge.segments) > most:
        return f"the challenge asks for {len(challenge.segments)} segments; the terms for {most}"
    if challenge.ends and not timeline.recipe.tolerance:
        return "the challenge asks for states that only terms with a tolerance need"
    return ""


def absent(answer: Path) -> Check:
    """The verifier names an answer that is not there."""
    return Check(
        "draw",
        Status.UNDECIDED,
        "there is no answer here",
        place=str(answer),
        advice="Give the folder that polo answer made.",
        level=LEVEL,
    )


def unanswered(challenge: Challenge, timeline: Timeline) -> Iterator[Check]:
    """An unanswered challenge is a failed one."""
    always, detail = timeline.required(), "was asked for, and there is no answer that counts"
    for place in challenge.segments:
        found = Check("segment", Status.FAILED, detail, place.shard, level=LEVEL)
        yield placed(found, place, always=place in always)
    for shard in challenge.sealings:
        yield Check("sealing", Status.FAILED, detail, shard, level=LEVEL)


def drawn(challenge: Challenge, timeline: Timeline, segments: Sequence[Check]) -> Check:
    """What the draw shows when all of it passed, with the chance that a forger got away.

    Args:
        challenge: What was drawn.
        timeline: The records.
        segments: The checks of the segments.
    """
    total = timeline.segments
    draws = min(timeline.recipe.draws, total)
    # In as few segments as hold so many steps: short ones are not worth faking.
    tenth = fewest(SHORTCUT, timeline.lengths, timeline.recipe.every)
    missed, single = overlooked(tenth, draws, total), overlooked(1, draws, total)
    shards = len(timeline.scope)
    twice = overlooked(min(total, 2 * shards), draws, total)
    sealing = overlooked(1, min(timeline.recipe.seals, shards), shards)
    exact = sum("distance" not in check.figures for check in segments)
    steps = sum(timeline.span(place).steps for place in challenge.segments)
    detail = (
        f"{len(segments)} of {counted(total, 'segment')} ({steps} of {timeline.steps} steps) and "
        f"{counted(len(challenge.sealings), 'sealing')} were run again, {exact} to the bit; "
        f"who faked a tenth of the steps escapes with probability {missed:.2g}, who faked "
        f"two segments in every shard with {twice:.2g}, a single one that is not recorded among "
        f"the largest moves with {single:.2g}, and a single sealing likewise with {sealing:.2g}"
    )
    figures = {
        "segments": total,
        "drawn": draws,
        "run": len(segments),
        "steps": steps,
        "exact": exact,
        "escape_tenth": missed,
        "escape_single": single,
        "escape_twice": twice,
        "escape_sealing": sealing,
    }
    return Check("draw", Status.PASSED, detail, level=LEVEL, figures=figures)


def placed(check: Check, place: Place, *, always: bool) -> Check:
    """A check of a segment, with which one it is and whether every challenge asks for it."""
    figures = {**check.figures, "segment": place.segment, "always": int(always)}
    return replace(check, figures=figures)


@dataclass(frozen=True)
class Escape:
    """Chances, by the terms alone, that steps which were not taken are not noticed.

    Attributes:
        shard: Of a whole shard.
        shards: Of a tenth of all steps, in whole shards.
        tenth: Of a tenth of the steps of every shard.
        single: Of a single segment that is not among the largest moves.
    """

    shard: float
    shards: float
    tenth: float
    single: float

    @classmethod
    def of(cls, rate: float, draws: int, steps: Sequence[int], every: int) -> Self:
        """What escapes where shards are drawn from while the chain grows.

        A whole shard is noticed whenever it is drawn from, since its first segment is among them.

        Args:
            rate: Chance that a shard is drawn from.
            draws: Segments that are drawn from such a shard.
            steps: Steps of each shard.
            every: Steps of a segment.

        >>> Escape.of(0.5, 5, [160] * 20, 16)
        Escape(shard=0.5, shards=0.25, tenth=0.0031712119389339932, single=0.75)
        """
        segments = [-(-each // every) for each in steps]
        missed = [
            overlooked(fewest(SHORTCUT, [each], every), min(draws, n), n)
            for each, n in zip(steps, segments, strict=True)
        ]
        alone = max((overlooked(1, min(draws, n), n) for n in segments), default=1.0)
        # A tenth of all steps, in whole shards, the longest first.
        whole = fewest(SHORTCUT, steps, max(steps, default=1))
        return cls(
            shard=1 - rate,
            shards=math.pow(1 - rate, whole),
            tenth=math.prod(1 - rate * (1 - each) for each in missed),
            single=1 - rate * (1 - alone),
        )


def grown(run: Mapping[int, int], timeline: Timeline) -> Check:
    """What was drawn and run again while the chain grew, and who escapes by the terms.

    Args:
        run: Segments that were run again, by shard; all of them came out as recorded.
        timeline: The records.
    """
    shards = len(timeline.records)
    rate = replays(timeline.manifest.terms) / MILLION
    if not run:
        detail = f"none of {counted(shards, 'shard')} was drawn from while the chain grew, so no "
        detail += f"step was run again; each is with probability {probability(rate)}"
        advice = "Ask for terms that draw from more shards: a larger `replays`."
        return Check("draw", Status.UNDECIDED, detail, level=LEVEL, advice=advice)
    steps = [timeline.manifest.shards[shard - 1].steps for shard in timeline.records]
    found = Escape.of(rate, timeline.recipe.draws, steps, timeline.recipe.every)
    detail = (
        f"{counted(sum(run.values()), 'segment')} of {numbered('shard', run)}, out of "
        f"{counted(shards, 'shard')}, and their sealings were run again while the chain grew, "
        f"each before its receipt; a shard is drawn from with probability {probability(rate)}, so "
        f"a whole one that was faked escapes with {probability(found.shard)}, a tenth of all "
        f"steps in whole shards with {probability(found.shards)}, a tenth of every shard's with "
        f"{probability(found.tenth)}, a single one that is not recorded among the largest moves "
        f"with {probability(found.single)}"
    )
    figures = {
        "segments": timeline.segments,
        "run": sum(run.values()),
        "shards": shards,
        "grown": len(run),
        "rate": rate,
        "escape_shard": found.shard,
        "escape_tenth": max(found.shards, found.tenth),
        "escape_single": found.single,
    }
    return Check("draw", Status.PASSED, detail, level=LEVEL, figures=figures)
