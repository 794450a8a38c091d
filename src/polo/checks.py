"""One check of a proof: its outcome, its figures, and what it shows.

Verifier and evidence speak through checks; `polo.verifier.verdict` makes a verdict of them.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polo.errors import MissingError, PoloError, StoreError


class Status(enum.StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "could not be decided"
    NOTE = "note"


MEANINGS: dict[str, str] = {
    "manifest": "The proof is a well-formed document of a known version.",
    "bundle": "What is here is exactly what this kind of bundle shows of the proof.",
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
    "residual": "How much of a shard's mark is still in the final model.",
    "ownership": "All marks together are in the final model, beyond luck.",
    "transfer": "Both owners signed that the model went from the one to the other.",
}
"""One sentence per check: what it shows when it passes."""


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
        ancestor: The earlier owner whose proof it concerns, 1 for the first; 0 for the proof
            itself.
    """

    name: str
    status: Status
    detail: str = ""
    shard: int = 0
    place: str = ""
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    advice: str = ""
    level: str = "chain"
    ancestor: int = 0

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
            "ancestor": self.ancestor,
            "place": self.place,
            "detail": self.detail,
            "figures": dict(self.figures),
            "meaning": self.meaning,
            "advice": self.advice,
        }


def problem(
    name: str,
    error: PoloError,
    status: Status | None = None,
    *,
    shard: int = 0,
    level: str = "chain",
) -> Check:
    """An error as a check: what is not here or not installed decides nothing."""
    if status is None:
        absent = isinstance(error, (MissingError, StoreError))
        status = Status.UNDECIDED if absent else Status.FAILED
    return Check(
        name,
        status,
        error.message,
        shard=shard,
        place=error.place,
        advice=error.advice,
        level=level,
    )
