"""The levels of evidence: what each shows and does not show, how it ended, what stays open.

A level's own gap may be closed by another level that was asked for, too. `gaps` says what is left
open by all of them together, which is what somebody who relies on a verdict must know.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from polo.checks import Check, Status, probability


@dataclass(frozen=True)
class LevelText:
    """What a level of evidence shows and does not show."""

    shows: str
    does_not_show: str


FINAL = "ownership"
"""What a verdict on the final model alone is about; no level that terms can ask for."""

LEVEL_TEXTS: dict[str, LevelText] = {
    "chain": LevelText(
        "order, identity, marks present, accuracy on the public test; stops tampering, guessing "
        "of keys, and blind overwriting",
        "effort; offline a chain can be made up afterwards in seconds",
    ),
    "receipts": LevelText(
        "each checkpoint was in an append-only log before the next nonce existed; stops "
        "back-dating and chains made up afterwards",
        "effort; a forger can run live, with all but a millisecond's edit prepared",
    ),
    "uniqueness": LevelText(
        "no chain registered earlier, outside the declared lineage, has its marks in these weights",
        "anything about models that were never registered, nor of copies whose neurons were "
        "permuted or rescaled; and it is the registry's word",
    ),
    "progress": LevelText(
        "the start was untrained, weights moved outside the marks, held-out loss fell, the first "
        "updates point downhill, the path is not straight",
        "much against a forger who trains one shard, or a little of each; these are heuristics and "
        "never enough for pay",
    ),
    "replay": LevelText(
        "randomly drawn steps of the declared computation, and the largest moves, were run again "
        "and came out the same",
        "that the data was worth learning",
    ),
}
"""The levels, in the order of `polo.protocol.records.LEVELS`."""

FINAL_TEXT = LevelText(
    "that the marks of this identity's chain are in the final model, beyond luck",
    "order, history, accuracy or effort; only the final model and the roots were looked at",
)

DRAWN_START = "a drawn start"
"""What terms can ask for that is no level: W_0 is fixed by the enrolment, so nobody trained it."""

_DRAWN_SHOWS = "the first weights are drawn from the enrolment, so that effort counts from nothing"

_CLOSED_BY = {"chain": ("receipts", "replay"), "receipts": ("replay",), "progress": ("replay",)}
"""Levels that close a level's gap, or whose own gap says it more exactly."""

_UNWITNESSED = "the dates, nor that the log is the same for all, beyond the registry's word"

_STARTS = {
    "free": "effort before W_0: the start is free and may have been trained before, by anybody",
    "parent": "effort before W_0, which is the model that the terms name",
}
_REASONS = ("chain", "receipts", "uniqueness", "replay", "progress")
"""Whose word weighs most when several levels fail: what is broken, before what is implausible."""

_SEVERITY = (Status.FAILED, Status.UNDECIDED, Status.PASSED)
_NEEDED = {"receipts": "dates", "replay": "draw"}
"""The check without which a level has shown nothing, whatever else passed."""


def ended(level: str, checks: Iterable[Check]) -> Status:
    """How a level ended: failed, undecided or passed; undecided if it was never looked at."""
    own = [check for check in checks if check.level == level]
    found = {check.status for check in own}
    status = next((status for status in _SEVERITY if status in found), Status.UNDECIDED)
    passed = {check.name for check in own if check.status is Status.PASSED}
    if status is Status.PASSED and _NEEDED.get(level, "") not in passed | {""}:
        return Status.UNDECIDED
    return status


def weight(check: Check) -> int:
    """How much a check's level weighs against other levels: the lower, the more."""
    return _REASONS.index(check.level) if check.level in _REASONS else len(_REASONS)


def by_weight(checks: Iterable[Check]) -> list[Check]:
    """Checks by how much their level's word weighs, else in the order they were made."""
    return sorted(checks, key=weight)


def gaps(
    levels: Collection[str],
    start: str,
    single: float | None,
    *,
    whole: float | None = None,
    witnessed: bool = True,
) -> Iterator[tuple[str, str]]:
    """What the levels together do not show: pairs of a level and what it leaves open.

    Args:
        levels: Levels that hold.
        start: How the chain starts: `free`, `parent` or `derived`.
        single: Chance that a single faked segment escaped the draw of level replay.
        whole: Chance that a whole faked shard escaped, where shards were drawn from as they came.
        witnessed: Whether others than the registry saw its log, where receipts were asked for.
    """
    if "replay" in levels and start in _STARTS:
        yield "replay", _STARTS[start]
    for level, text in (LEVEL_TEXTS | {FINAL: FINAL_TEXT}).items():
        if level in levels and not set(_CLOSED_BY.get(level, ())) & set(levels):
            yield level, text.does_not_show
    if "receipts" in levels and not witnessed:
        yield "receipts", _UNWITNESSED
    if "replay" in levels and whole:
        words = "every shard: the registry drew from some of them, and one that was faked escapes "
        yield "replay", f"{words}with probability {probability(whole)}"
    if "replay" in levels and single:
        words = "every segment: a single one that was faked, and is not among the largest moves, "
        yield "replay", f"{words}escapes with probability {probability(single)}"
    if "replay" in levels and "receipts" not in levels:
        yield "chain", "when it was trained: there are no receipts"


def closers(levels: Collection[str], start: str) -> dict[str, str]:
    """What terms could ask for besides, with what it would show."""
    wanted = {name for level in levels for name in _CLOSED_BY.get(level, ())}
    found = {
        name: text.shows
        for name, text in LEVEL_TEXTS.items()
        if name in wanted and name not in levels
    }
    if start == "free" and "replay" in levels:
        found[DRAWN_START] = _DRAWN_SHOWS
    return found


def in_short(levels: Collection[str], start: str) -> str:
    """What acceptance at these levels amounts to, in one line."""
    if FINAL in levels:
        return "Ownership of the final model, and nothing else."
    if "replay" in levels:
        since = {
            "derived": "Effort from an untrained start on, not the worth of its data.",
            "parent": "Effort from the named model on, not before it, nor the worth of its data.",
        }
        return since.get(start, "Effort from W_0 on, which may have been trained before.")
    if "progress" in levels:
        return "Order and ownership; of effort only hints, never enough for pay."
    return "Order and ownership, not effort."
