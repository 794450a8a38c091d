"""The verdict: every check, its figures, and what it does and does not show."""

import dataclasses
import enum
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polo.checks import Check, Status, counted
from polo.protocol.records import Bundle

MOST_SPANS = 8


class Outcome(enum.IntEnum):
    """How a verdict ended; the number is the command line's exit code."""

    ACCEPTED = 0
    REJECTED = 1
    UNDECIDED = 2

    @property
    def words(self) -> str:
        """The outcome as a person reads it."""
        return ("ACCEPTED", "REJECTED", "COULD NOT DECIDE")[self]


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
        "anything about models that were never registered",
    ),
    "progress": LevelText(
        "the start was untrained, weights moved outside the marks, held-out loss fell, updates "
        "point downhill, the path is not straight",
        "much against an adaptive forger; these are heuristics and never enough for pay",
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


def spans(numbers: Sequence[int]) -> str:
    """Increasing numbers as a person reads them.

    >>> spans([3]), spans([3, 9]), spans([1, 2, 5, 6, 7, 9])
    ('3', '3 and 9', '1, 2, 5 to 7 and 9')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def marks_named(shards: Sequence[int]) -> str:
    """Marks by their shards, or only their number where the list would be long.

    >>> marks_named([3]), marks_named([3, 9]), marks_named(range(1, 90, 2))
    ('mark 3', 'marks 3 and 9', '45 marks')
    """
    which = spans(shards)
    if which.count(",") > MOST_SPANS:
        return counted(len(shards), "mark")
    return f"mark{'' if len(shards) == 1 else 's'} {which}"


def described(bundle: Bundle, total: int) -> str:
    """A bundle in words."""
    if bundle.kind == "verifier":
        return "the verifier's bundle: the whole proof"
    if bundle.kind == "public":
        return "a public bundle: no nonce, no opening, no weights"
    return f"a disclosure: {marks_named(bundle.shards)} of {total}"


@dataclass(frozen=True)
class Owner:
    """One who has owned the model, as the proof says.

    Attributes:
        id: Fingerprint of their key.
        name: What the verifier calls that key; empty if it is not known here.
        first: Their first shard, counted through all owners.
        last: Their last shard, counted likewise.
        enrolled: When they were enrolled, by the issuer's clock.
        how: How they came by it: `trained`, or `transfer`.
    """

    id: str
    name: str
    first: int
    last: int
    enrolled: int
    how: str

    @property
    def label(self) -> str:
        """Name and the beginning of the id."""
        return f"{self.name} ({self.id[:16]}…)" if self.name else f"{self.id[:16]}…"


@dataclass(frozen=True)
class Verdict:
    """What came of a verification.

    It is no boolean, and using it as one raises: ask for `outcome`.

    Attributes:
        proof: The folder that was verified.
        checks: All checks in the order they were made.
        facts: Who, what, under which terms; for the reader.
        levels: Levels of evidence that the terms ask for.
        owners: Who has owned the model, the first one first; empty where that cannot be told.
        bundle: Which part of the proof was there, where it says so.
    """

    proof: str
    checks: tuple[Check, ...]
    facts: Mapping[str, str | int] = field(default_factory=dict)
    levels: tuple[str, ...] = ("chain",)
    bundle: Bundle | None = None
    owners: tuple[Owner, ...] = ()

    def __bool__(self) -> bool:
        raise TypeError("a verdict is no boolean; compare verdict.outcome with polo.Outcome")

    @property
    def outcome(self) -> Outcome:
        """Rejected if any check failed, undecided if any could not be decided."""
        found = {check.status for check in self.checks}
        if Status.FAILED in found:
            return Outcome.REJECTED
        if Status.UNDECIDED in found or Status.PASSED not in found:
            return Outcome.UNDECIDED
        return Outcome.ACCEPTED

    def of(self, status: Status) -> Iterator[Check]:
        """All checks with a status."""
        return (check for check in self.checks if check.status == status)

    def per_shard(self, name: str) -> dict[int, Check]:
        """The checks of one name, by shard, oldest first; earlier owners' shards do not count."""
        own = (check for check in self.checks if check.shard and not check.ancestor)
        found = {check.shard: check for check in own if check.name == name}
        return dict(sorted(found.items()))

    @property
    def shown(self) -> tuple[int, ...] | None:
        """Shards whose marks were shown, where only part of the proof was; None if all of it."""
        partial = self.bundle is not None and self.bundle.kind != "verifier"
        return self.bundle.shards if self.bundle and partial else None

    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.outcome is Outcome.REJECTED:
            return f"REJECTED: {next(self.of(Status.FAILED)).sentence()}"
        if self.outcome is Outcome.UNDECIDED:
            first = next(self.of(Status.UNDECIDED), None)
            if first and first.name == "mark" and self.shown == ():
                held = "signatures, order and links hold"
                return f"COULD NOT DECIDE: {held}; {first.detail}"
            return f"COULD NOT DECIDE: {first.sentence() if first else 'nothing was checked'}"
        if self.levels == (FINAL,):
            found = next(check for check in self.checks if check.name == "ownership")
            return f"ACCEPTED as ownership of the final model only: {found.detail}"
        if self.shown is not None:
            return f"ACCEPTED as a disclosure: order, identity and {self._shown_marks()}"
        marks, tested = len(self.per_shard("mark")), len(self.per_shard("accuracy"))
        accuracy = (
            f"{counted(tested, 'checkpoint')} tested, as good as the terms ask"
            if tested
            else "accuracy was not tested"
        )
        shown, held = " + ".join(self.levels), counted(marks, "mark")
        accuracy += self._handed_on()
        return f"ACCEPTED at level {shown}: order, identity and {held} hold; {accuracy}"

    def _handed_on(self) -> str:
        if len(self.owners) < 2:
            return ""
        earlier = [check for check in self.of(Status.PASSED) if check.ancestor]
        marks = counted(sum(check.name == "mark" for check in earlier), "mark")
        return f"; {counted(len(self.owners) - 1, 'transfer')} and {marks} of earlier owners hold"

    @property
    def texts(self) -> dict[str, LevelText]:
        """What this verdict's levels show and do not show."""
        known = {**LEVEL_TEXTS, FINAL: FINAL_TEXT}
        return {level: text for level, text in known.items() if level in self.levels}

    def _shown_marks(self) -> str:
        shown, total = self.shown or (), self.facts.get("shards", 0)
        if len(shown) == total:
            return f"all {counted(len(shown), 'mark')} hold; the weights were not shown"
        return f"{marks_named(shown)} of {total} hold; the other marks were not shown"

    @property
    def caution(self) -> str:
        """What an accepted verdict does not show; for the amber line that goes with it."""
        texts = self.texts.values()
        return "; ".join(f"it does not show {text.does_not_show}" for text in texts)

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return {
            "format": "polo/verdict/1",
            "outcome": self.outcome.name.lower(),
            "exit_code": int(self.outcome),
            "headline": self.headline(),
            "proof": self.proof,
            "bundle": self.bundle.to_json() if self.bundle else None,
            "facts": dict(self.facts),
            "owners": [dataclasses.asdict(owner) for owner in self.owners],
            "levels": [
                {
                    "level": name,
                    "shows": self._shown(text),
                    "does_not_show": text.does_not_show,
                }
                for name, text in self.texts.items()
            ],
            "checks": [check.to_json() for check in self.checks],
        }

    def _shown(self, text: LevelText) -> str:
        """What a level shows here: accuracy and marks only as far as they were looked at."""
        shows = text.shows
        if not self.per_shard("accuracy"):
            shows = shows.replace(", accuracy on the public test", "")
        if self.shown is not None:
            shows = shows.replace("marks present", "the marks that were shown")
        return shows

    def __str__(self) -> str:
        return self.headline()

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(check.name)}</td>"
            f"<td>{html.escape(check.place) if check.ancestor else check.shard or ''}</td>"
            f"<td>{check.status.value}</td><td>{html.escape(check.detail)}</td></tr>"
            for check in self.checks
        )
        head = "<tr><th>check</th><th>shard</th><th>status</th><th>detail</th></tr>"
        return f"<p><b>{html.escape(self.headline())}</b></p><table>{head}{rows}</table>"
