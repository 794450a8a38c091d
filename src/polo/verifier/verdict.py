"""The verdict: every check, its figures, and what it does and does not show."""

import enum
import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "could not be decided"
    NOTE = "note"


class Outcome(enum.IntEnum):
    """How a verdict ended; the number is the command line's exit code."""

    ACCEPTED = 0
    REJECTED = 1
    UNDECIDED = 2

    @property
    def words(self) -> str:
        """The outcome as a person reads it."""
        return ("ACCEPTED", "REJECTED", "COULD NOT DECIDE")[self]


MEANINGS: dict[str, str] = {
    "manifest": "The proof is a well-formed document of a known version.",
    "issuer": "Somebody you trust fixed the terms and drew the nonces.",
    "signature": "The enrolled key signed exactly this list of shards and files.",
    "files": "Every file is the one that was signed, and there is no other.",
    "layout": "Names, types and shapes of the weights are those of the terms.",
    "order": "Shards are numbered 1, 2, 3, … without a gap.",
    "links": "Each shard names the root that ended the one before; its mark derives from it.",
    "duplicates": "No two shards end in the same weights.",
    "limits": "There are as many shards, and each says it took as many steps, as the terms ask.",
    "receipts": "There are no receipts where the enrolment is offline.",
    "noise": "The declared obfuscation is within the terms' bounds.",
    "nonce": "The issuer drew this nonce; the prover could not choose it.",
    "root": "The stored weights are those the chain commits to.",
    "mark": "The weights carry a mark that could not be known before the shard began.",
    "reading": "The prover's own count of matching bits is right.",
    "accuracy": "The stored model does the task's job on public data as well as the terms ask.",
    "claim": "The prover's own figure agrees with what was measured here.",
    "start": "How the weights before the first shard came about.",
    "history": "Which checkpoints can still be tested.",
    "closing": "Whether the prover closed the proof, and what lies after its last shard.",
    "evidence": "A further level of evidence that the terms ask for.",
    "delivered": "The file you were given is the model the proof ends in.",
}
"""One sentence per check: what it shows when it passes."""


@dataclass(frozen=True)
class LevelText:
    """What a level of evidence shows and does not show."""

    shows: str
    does_not_show: str


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


def plain(text: str) -> str:
    r"""Text in which nothing acts: control and direction marks, lone surrogates are spelt out.

    >>> print(plain("a\x1b[31mb"))
    a\u001b[31mb
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else " " if c in "\n\t\xa0" else f"\\u{ord(c):04x}" for c in text
    )


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "mark"), counted(2, "mark")
    ('1 mark', '2 marks')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Which one; `MEANINGS` says what it shows.
        status: How it ended.
        detail: What was expected and what was found.
        shard: The shard it concerns; 0 for the proof as a whole.
        place: File, tensor or field it concerns, where there is one.
        figures: Its numbers.
        advice: What to do about it.
        level: The level of evidence it belongs to.
    """

    name: str
    status: Status
    detail: str = ""
    shard: int = 0
    place: str = ""
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    advice: str = ""
    level: str = "chain"

    @property
    def meaning(self) -> str:
        """What the check shows when it passes."""
        return MEANINGS[self.name]

    def sentence(self) -> str:
        """The check in one line, in which nothing from the proof can act on a terminal."""
        where = [f"shard {self.shard}"] if self.shard else []
        where += [self.place] if self.place else []
        start = f"{self.name} ({', '.join(where)})" if where else self.name
        return plain(f"{start}: {self.detail or self.status.value}")

    def to_json(self) -> dict[str, Any]:
        """The check as JSON."""
        return {
            "name": self.name,
            "level": self.level,
            "status": self.status.value,
            "shard": self.shard,
            "place": self.place,
            "detail": self.detail,
            "figures": dict(self.figures),
            "meaning": self.meaning,
            "advice": self.advice,
        }


@dataclass(frozen=True)
class Verdict:
    """What came of a verification.

    It is no boolean, and using it as one raises: ask for `outcome`.

    Attributes:
        proof: The folder that was verified.
        checks: All checks in the order they were made.
        facts: Who, what, under which terms; for the reader.
        levels: Levels of evidence that the terms ask for.
    """

    proof: str
    checks: tuple[Check, ...]
    facts: Mapping[str, str | int] = field(default_factory=dict)
    levels: tuple[str, ...] = ("chain",)

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
        """The checks of one name, by shard, oldest first."""
        found = {check.shard: check for check in self.checks if check.name == name and check.shard}
        return dict(sorted(found.items()))

    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.outcome is Outcome.REJECTED:
            return f"REJECTED: {next(self.of(Status.FAILED)).sentence()}"
        if self.outcome is Outcome.UNDECIDED:
            first = next(self.of(Status.UNDECIDED), None)
            return f"COULD NOT DECIDE: {first.sentence() if first else 'nothing was checked'}"
        marks, tested = len(self.per_shard("mark")), len(self.per_shard("accuracy"))
        accuracy = (
            f"{counted(tested, 'checkpoint')} tested, as good as the terms ask"
            if tested
            else "accuracy was not tested"
        )
        shown, held = " + ".join(self.levels), counted(marks, "mark")
        return f"ACCEPTED at level {shown}: order, identity and {held} hold; {accuracy}"

    @property
    def caution(self) -> str:
        """What an accepted verdict does not show; for the amber line that goes with it."""
        texts = (LEVEL_TEXTS[level] for level in self.levels)
        return "; ".join(f"it does not show {text.does_not_show}" for text in texts)

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return {
            "format": "polo/verdict/1",
            "outcome": self.outcome.name.lower(),
            "exit_code": int(self.outcome),
            "headline": self.headline(),
            "proof": self.proof,
            "facts": dict(self.facts),
            "levels": [
                {
                    "level": name,
                    "shows": self._shown(text),
                    "does_not_show": text.does_not_show,
                }
                for name, text in LEVEL_TEXTS.items()
                if name in self.levels
            ],
            "checks": [check.to_json() for check in self.checks],
        }

    def _shown(self, text: LevelText) -> str:
        """What a level shows here: accuracy only where it was tested."""
        tested = bool(self.per_shard("accuracy"))
        return text.shows if tested else text.shows.replace(", accuracy on the public test", "")

    def __str__(self) -> str:
        return self.headline()

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(check.name)}</td><td>{check.shard or ''}</td>"
            f"<td>{check.status.value}</td><td>{html.escape(check.detail)}</td></tr>"
            for check in self.checks
        )
        head = "<tr><th>check</th><th>shard</th><th>status</th><th>detail</th></tr>"
        return f"<p><b>{html.escape(self.headline())}</b></p><table>{head}{rows}</table>"
