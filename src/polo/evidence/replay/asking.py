"""What was asked for: whether a challenge fits a proof, and what an answer to it shows.

Specification: docs/protocol.md, sections 17.6 and 17.10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from polo.checks import Check, Status, counted
from polo.evidence.replay.challenge import escape, overlooked
from polo.evidence.replay.timeline import LEVEL, Timeline
from polo.protocol.challenge import Challenge, Place

SHORTCUT = 0.10
"""The share of faked segments that verdicts state the chance of escape for."""


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


def unfit(challenge: Challenge, timeline: Timeline) -> Check | None:
    """Why a challenge does not fit the proof, if so."""
    recipe, total, shards = timeline.recipe, timeline.segments, len(timeline.records)
    unknown = [place for place in challenge.segments if not timeline.has(place)]
    strange = [shard for shard in challenge.sealings if shard not in timeline.records]
    missing = sorted(timeline.required() - set(challenge.segments))
    detail = ""
    if challenge.proof != timeline.manifest.digest:
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
    always, detail = timeline.required(), "was asked for, and there is no answer"
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
    missed, single = escape(SHORTCUT, draws, total), overlooked(1, draws, total)
    twice = overlooked(min(total, 2 * len(timeline.records)), draws, total)
    exact = sum("distance" not in check.figures for check in segments)
    steps = sum(timeline.span(place).steps for place in challenge.segments)
    detail = (
        f"{len(segments)} of {counted(total, 'segment')} ({steps} of {timeline.steps} steps) and "
        f"{counted(len(challenge.sealings), 'sealing')} were run again, {exact} to the bit; "
        f"who faked a tenth of the segments escapes with probability {missed:.2g}, who faked "
        f"two in every shard with {twice:.2g}, a single one that is not recorded among the largest "
        f"moves with {single:.2g}"
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
    }
    return Check("draw", Status.PASSED, detail, level=LEVEL, figures=figures)


def placed(check: Check, place: Place, *, always: bool) -> Check:
    """A check of a segment, with which one it is and whether every challenge asks for it."""
    figures = {**check.figures, "segment": place.segment, "always": int(always)}
    return replace(check, figures=figures)
