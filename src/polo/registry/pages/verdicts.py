"""A signed verdict as a page shows it: outcome, levels, what stands in the way."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from polo.checks import MEANINGS, Check, Status, counted
from polo.protocol.verdicts import CheckRecord, SignedVerdict

MOST_PROBLEMS = 20
_LOOKS = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.UNDECIDED: "open",
    Status.NOTE: "note",
}
_STATUSES = {status.value.replace(" ", "-"): status for status in Status}


@dataclass(frozen=True)
class LevelLine:
    """How a level of evidence ended, what it shows, and what it does not."""

    name: str
    outcome: str
    look: str
    found: str
    shows: str
    does_not_show: str


@dataclass(frozen=True)
class CheckLine:
    """A check that stands in the way of acceptance."""

    name: str
    shard: int
    look: str
    detail: str
    meaning: str


@dataclass(frozen=True)
class VerdictView:
    """A verdict for the page; the full report has all of it."""

    outcome: str
    sentence: str
    cautions: Sequence[str]
    levels: Sequence[LevelLine]
    problems: Sequence[CheckLine]
    more: int
    counts: str
    challenges: str
    others: str
    key: bytes
    has_report: bool


def view(record: SignedVerdict, start: str) -> VerdictView:
    """The page's view of a verdict.

    Args:
        record: What the registry signed.
        start: How the chain starts, by its terms.
    """
    # Imported late: it brings numpy with it, which the server starts without.
    from polo.verifier.verdict import Verdict

    checks = tuple(_check(item) for item in record.checks)
    verdict = Verdict("", checks, facts={"start": start}, levels=record.levels)
    problems = verdict.problems()
    gaps = verdict.gaps() if record.outcome == "accepted" else []
    return VerdictView(
        outcome=record.outcome,
        sentence=_sentence(record.headline),
        cautions=[f"Level {level} does not show {words}." for level, words in gaps],
        levels=[
            LevelLine(
                name,
                verdict.ended(name).name.lower(),
                _LOOKS[verdict.ended(name)],
                verdict.found(name),
                text.shows,
                text.does_not_show,
            )
            for name, text in verdict.texts.items()
        ],
        problems=[_line(check) for check in problems[:MOST_PROBLEMS]],
        more=max(0, len(problems) - MOST_PROBLEMS),
        counts=_counts(record),
        challenges=_challenges(record),
        others=_others(record),
        key=record.issuer,
        has_report=record.report is not None,
    )


def _sentence(headline: str) -> str:
    """The headline without the outcome, which stands above it."""
    for word in ("ACCEPTED", "REJECTED", "COULD NOT DECIDE"):
        headline = headline.removeprefix(word)
    text = headline.lstrip(": ")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _counts(record: SignedVerdict) -> str:
    found = Counter(_STATUSES.get(item.status, Status.UNDECIDED) for item in record.checks)
    found[Status.PASSED] += record.left_out
    words = {status: status.value for status in Status} | {Status.NOTE: "to note"}
    said = ", ".join(f"{found[status]} {words[status]}" for status in Status if found[status])
    return f"{counted(len(record.checks) + record.left_out, 'check')}: {said or 'none'}"


def _challenges(record: SignedVerdict) -> str:
    if not record.challenges:
        return "The registry drew no challenge."
    passed = sum(item.state == "passed" for item in record.challenges)
    return f"Of {counted(len(record.challenges), 'challenge')} {passed} passed."


def _others(record: SignedVerdict) -> str:
    """A sentence where the identity's other chains give reason to look twice; else nothing."""
    others = record.others
    said = {"failed": others.failed, "were withdrawn": others.withdrawn, "are stuck": others.stuck}
    said["wait for a challenge to end"] = others.waiting
    found = ", ".join(f"{count} {words}" for words, count in said.items() if count)
    return f"Of the same identity's other chains here {found}." if found else ""


def _check(item: CheckRecord) -> Check:
    return Check(
        name=item.name,
        status=_STATUSES.get(item.status, Status.UNDECIDED),
        detail=item.detail,
        shard=item.shard,
        place=item.place,
        figures={name: _number(text) for name, text in item.figures.items()},
        level=item.level,
        ancestor=item.ancestor,
    )


def _number(text: str) -> float | int | str:
    """A figure, which the record keeps as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _line(check: Check) -> CheckLine:
    meaning = MEANINGS.get(check.name, "")
    return CheckLine(check.name, check.shard, _LOOKS[check.status], check.detail, meaning)
