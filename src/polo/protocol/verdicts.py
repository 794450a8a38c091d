"""A registry's verdict, as it signs it: what it checked of which proof, and how each check ended.

Specification: docs/protocol.md, section 22.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from polo.protocol.canonical import MAX_SAFE_INTEGER
from polo.protocol.fields import (
    Bytes,
    Choice,
    Integer,
    ListOf,
    MapOf,
    Nested,
    Nullable,
    Record,
    Text,
    of,
)
from polo.protocol.records import LEVELS, MAX_SHARDS, SignedRecord

MAX_CHECKS = 50_000
OUTCOMES = ("accepted", "rejected", "undecided")
_WORD = Text(64, r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SENTENCE = Text(2000)


@dataclass(frozen=True)
class CheckRecord(Record):
    """One check.

    Attributes:
        name: Which one.
        level: The level of evidence it belongs to.
        status: How it ended.
        shard: The shard it concerns; 0 for the proof as a whole.
        ancestor: The earlier owner whose proof it concerns; 0 for the proof itself.
        place: File, tensor or field it concerns.
        detail: What was expected and what was found.
        figures: Its numbers, each as decimal text.
    """

    name: str = of(_WORD)
    level: str = of(_WORD)
    status: str = of(_WORD)
    shard: int = of(Integer(0, MAX_SHARDS))
    ancestor: int = of(Integer(0, MAX_SHARDS))
    place: str = of(Text(512))
    detail: str = of(_SENTENCE)
    figures: Mapping[str, str] = of(MapOf(_WORD, Text(128), 64))


@dataclass(frozen=True)
class Asked(Record):
    """One challenge that the registry drew, and how it ended.

    Attributes:
        kind: What was asked for.
        shard: The shard; 0 for the chain as a whole.
        state: How it ended.
    """

    kind: str = of(Choice(("checkpoint", "replay")))
    shard: int = of(Integer(0, MAX_SHARDS))
    state: str = of(Choice(("open", "answered", "passed", "failed")))


@dataclass(frozen=True)
class Others(Record):
    """How many other chains of the same identity came to no good end at this registry, or may.

    Attributes:
        failed: Failed a challenge, or were withdrawn in view of one.
        withdrawn: Were withdrawn with shards committed to.
        stuck: Have an answer that the registry could not check.
        waiting: Have a challenge that is not answered, or not checked, yet.
    """

    failed: int = of(Integer(0, MAX_SAFE_INTEGER))
    withdrawn: int = of(Integer(0, MAX_SAFE_INTEGER))
    stuck: int = of(Integer(0, MAX_SAFE_INTEGER))
    waiting: int = of(Integer(0, MAX_SAFE_INTEGER))


@dataclass(frozen=True)
class SignedVerdict(SignedRecord):
    """A verdict, signed by the issuer of the enrolment.

    Attributes:
        origin: Name of the registry.
        enrolment: Digest of the enrolment.
        proof: Digest of the manifest that was verified.
        outcome: `accepted`, `rejected` or `undecided`.
        headline: The verdict in one sentence.
        levels: Levels of evidence that were asked for.
        checks: The checks, in the order they were made.
        left_out: Passed checks that are not listed, since there were too many.
        challenges: What the registry drew, and how it ended.
        others: What became of the identity's other chains: who is caught early can begin again.
        report: SHA-256 of the page that shows all of it; null if there is none.
        version: Release of PoLO that verified.
        time: Seconds since 1970.
        issuer: Key that signed.
        signature: Its signature.
    """

    FORMAT = "polo/signed-verdict/1"

    origin: str = of(Text(256))
    enrolment: bytes = of(Bytes(32))
    proof: bytes = of(Bytes(32))
    outcome: str = of(Choice(OUTCOMES))
    headline: str = of(_SENTENCE)
    levels: tuple[str, ...] = of(ListOf(Choice(LEVELS), len(LEVELS)))
    checks: tuple[CheckRecord, ...] = of(ListOf(Nested(CheckRecord), MAX_CHECKS))
    left_out: int = of(Integer(0, MAX_SAFE_INTEGER))
    challenges: tuple[Asked, ...] = of(ListOf(Nested(Asked), 2 * MAX_SHARDS))
    others: Others = of(Nested(Others))
    report: bytes | None = of(Nullable(Bytes(32)))
    version: str = of(Text(64))
    time: int = of(Integer(0, MAX_SAFE_INTEGER))
    issuer: bytes = of(Bytes(32))
    signature: bytes = of(Bytes(64), default=bytes(64))
