"""One check of a proof: its outcome, its figures, and what it shows.

Verifier and evidence speak through checks; `polo.verifier.verdict` makes a verdict of them.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polo.errors import MissingError, PoloError, StoreError

MOST_SPANS = 8


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
    "base": "The adapter stands on the base model that the terms name; it is no part of the proof.",
    "history": "Which checkpoints can still be tested.",
    "closing": "Whether the prover closed the proof, and what lies after its last shard.",
    "evidence": "A further level of evidence that the terms ask for.",
    "record": "The recorded states lie end to end, none comes twice, and their moves add up.",
    "draw": "So much was run again that who faked a tenth is caught with the stated probability.",
    "segment": "These steps, run again from the recorded state, end in the recorded state.",
    "sealing": "Finishing step and committed noise, done again, give the sealed weights.",
    "data": "The samples that were shown are not mostly copies of each other.",
    "effect": "The steps depend on their samples; they could not be known without taking them.",
    "copies": "The samples of a batch teach different things, so that none stands for another.",
    "width": "Most of a step must be computed: silent units, and what rounds away, cost nothing.",
    "delivered": "The file you were given is the model the proof ends in.",
    "residual": "How much of a shard's mark is still in the final model.",
    "ownership": "All marks together are in the final model, beyond luck.",
    "transfer": "Both owners signed that the model went from the one to the other.",
    "downhill": "Early updates point down the slope of held-out loss; a heuristic.",
    "movement": "Weights outside the marks moved by more than the declared noise; a heuristic.",
    "path": "The checkpoints do not lie on a straight line between two models; a heuristic.",
    "loss": "Loss on data that was held out fell from the start; a heuristic.",
    "receipt": "The registry signed when it was told of this checkpoint, and where in its log.",
    "entry": "The log holds what the manifest says of the shard, signed by the prover.",
    "witness": "Others than the registry saw the log with these entries in it, and say when.",
    "unique": "No chain that somebody else registered earlier is in the last checkpoint.",
    "dates": "Places in the log and times go forward, as fast as the terms allow at most.",
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
    return listed(words)


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """A noun with the numbers it is about, or only with how many where the list would be long.

    >>> numbered("mark", [3]), numbered("mark", [9, 3]), numbered("mark", range(1, 90, 2))
    ('mark 3', 'marks 3 and 9', '45 marks')
    """
    found = sorted(set(numbers))
    which = spans(found)
    if which.count(",") > MOST_SPANS:
        return counted(len(found), noun)
    return f"{noun}{'' if len(found) == 1 else 's'} {which}"


def probability(value: float) -> str:
    """A probability as a person reads it.

    >>> probability(0.0), probability(0.008512), probability(0.76), probability(0.9996)
    ('0', '0.0085', '0.76', '0.9996')
    """
    return f"{value:.4f}" if 0.99 < value < 1 else f"{value:.2g}"


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

    @property
    def where(self) -> list[str]:
        """Shard, segment and place that it concerns, as far as there are any."""
        segment = self.figures.get("segment")
        return [
            *([f"shard {self.shard}"] if self.shard else []),
            *([f"segment {segment}"] if isinstance(segment, int) else []),
            *([self.place] if self.place else []),
        ]

    def sentence(self) -> str:
        """The check in one line, in which nothing from the proof can act on a terminal."""
        where = self.where
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
