"""The verdict: every check, its figures, and what it does and does not show."""

import dataclasses
import enum
import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from polo.checks import Check, Status, counted, numbered
from polo.protocol.records import Bundle
from polo.verifier import levels
from polo.verifier.findings import HELD, Logged, Replayed, summary
from polo.verifier.levels import FINAL, FINAL_TEXT, LEVEL_TEXTS, LevelText


class Outcome(enum.IntEnum):
    """How a verdict ended; the number is the command line's exit code."""

    ACCEPTED = 0
    REJECTED = 1
    UNDECIDED = 2

    @property
    def words(self) -> str:
        """The outcome as a person reads it."""
        return ("ACCEPTED", "REJECTED", "COULD NOT DECIDE")[self]


def described(bundle: Bundle, total: int) -> str:
    """A bundle in words."""
    if bundle.kind == "verifier":
        return "the verifier's bundle: the whole proof"
    if bundle.kind == "public":
        return "a public bundle: no nonce, no opening, no weights"
    return f"a disclosure: {numbered('mark', bundle.shards)} of {total}"


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
        """Rejected if a check failed; undecided if one could not be decided, or a level is open."""
        found = {check.status for check in self.checks}
        if Status.FAILED in found:
            return Outcome.REJECTED
        if Status.UNDECIDED in found or Status.PASSED not in found or self._unseen:
            return Outcome.UNDECIDED
        return Outcome.ACCEPTED

    @property
    def _unseen(self) -> list[str]:
        """Levels asked for that nothing was found out about, although no check says why."""
        return [level for level in self.levels if self.ended(level) is Status.UNDECIDED]

    def ended(self, level: str) -> Status:
        """How a level of evidence ended: passed, failed or undecided."""
        return levels.ended(level, self.checks)

    def found(self, level: str) -> str:
        """What a level of evidence found, in one line."""
        return summary(level, self.ended(level), self.checks)

    def of(self, status: Status) -> Iterator[Check]:
        """All checks with a status, in the order they were made."""
        return (check for check in self.checks if check.status == status)

    def problems(self) -> list[Check]:
        """What stands in the way, the weightiest first: what failed, then what is undecided."""
        return [
            *levels.by_weight(self.of(Status.FAILED)),
            *levels.by_weight(self.of(Status.UNDECIDED)),
        ]

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
        if self.outcome is not Outcome.ACCEPTED:
            return self._refusal()
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
        accuracy += self._handed_on() + self._effort()
        return f"ACCEPTED at level {shown}: order, identity and {held} hold; {accuracy}"

    def _refusal(self) -> str:
        """Why a proof is not accepted: the weightiest reason, and whose word it is."""
        words, first = self.outcome.words, next(iter(self.problems()), None)
        if first is None:
            where = f" at level {self._unseen[0]}" if self.checks and self._unseen else ""
            return f"{words}: nothing was checked{where}"
        if first.name == "mark" and first.status is Status.UNDECIDED and self.shown == ():
            return f"{words}: signatures, order and links hold; {first.detail}"
        where = f" at level {first.level}" if len(self.levels) > 1 else ""
        alike = sum(check.name == first.name == "segment" for check in self.of(first.status)) - 1
        end = "failed" if first.status is Status.FAILED else "undecided"
        more = f"; {counted(alike, 'more segment')} {end}" if alike > 0 else ""
        return f"{words}{where}: {first.sentence()}{more}"

    def _effort(self) -> str:
        """What the levels of effort add to an accepted headline."""
        return "".join(f"; {HELD[level](self.checks)}" for level in HELD if level in self.levels)

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
        return {
            level: LevelText(self._shown(text), text.does_not_show)
            for level, text in known.items()
            if level in self.levels
        }

    def _shown_marks(self) -> str:
        shown, total = self.shown or (), self.facts.get("shards", 0)
        if len(shown) == total:
            return f"all {counted(len(shown), 'mark')} hold; the weights were not shown"
        return f"{numbered('mark', shown)} of {total} hold; the other marks were not shown"

    @property
    def caution(self) -> str:
        """What an accepted verdict does not show; for the amber line that goes with it."""
        return "; ".join(f"it does not show {words}" for _, words in self.gaps())

    @property
    def start(self) -> str:
        """How the chain starts: `free`, `parent` or `derived`; free where it is not said."""
        return str(self.facts.get("start", "free"))

    def gaps(self) -> list[tuple[str, str]]:
        """What an accepted verdict does not show, by the level that leaves it open."""
        replayed, witnessed = Replayed.of(self.checks), Logged.of(self.checks).witnessed
        found = levels.gaps(
            self.levels,
            self.start,
            replayed.single,
            whole=replayed.whole,
            witnessed=witnessed,
        )
        return list(found)

    def closers(self) -> dict[str, str]:
        """What terms could have asked for besides, with what it would have shown."""
        return levels.closers(self.levels, self.start)

    def in_short(self) -> str:
        """What an accepted verdict amounts to, in one line."""
        if self.shown is not None:
            return "Order and the marks that were shown, not the model."
        return levels.in_short(self.levels, self.start)

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return {
            "format": "polo/verdict/1",
            "outcome": self.outcome.name.lower(),
            "exit_code": int(self.outcome),
            "headline": self.headline(),
            "caution": self.caution if self.outcome is Outcome.ACCEPTED else "",
            "proof": self.proof,
            "bundle": self.bundle.to_json() if self.bundle else None,
            "facts": dict(self.facts),
            "owners": [dataclasses.asdict(owner) for owner in self.owners],
            "levels": [
                {
                    "level": name,
                    "outcome": self.ended(name).name.lower(),
                    "found": self.found(name),
                    "shows": text.shows,
                    "does_not_show": text.does_not_show,
                }
                for name, text in self.texts.items()
            ],
            "checks": [check.to_json() for check in self.checks],
        }

    def _shown(self, text: LevelText) -> str:
        """What a level shows here: accuracy, marks, start, dates only if they were looked at."""
        shows = text.shows
        if not self.per_shard("accuracy"):
            shows = shows.replace(", accuracy on the public test", "")
        if self.shown is not None:
            shows = shows.replace("marks present", "the marks that were shown")
        if self.start != "derived":
            shows = shows.replace("the start was untrained, ", "")
        if not Logged.of(self.checks).witnessed:
            shows = shows.replace("stops back-dating and chains", "stops chains")
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
