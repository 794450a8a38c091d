"""What a verifier asks to see again, and the prover's signed answer.

Specification: docs/protocol.md, section 17.
"""

import functools
from dataclasses import dataclass
from typing import Any, Self

from polo.errors import FormatError
from polo.protocol import canonical
from polo.protocol.digest import tagged
from polo.protocol.fields import Boolean, Bytes, Integer, ListOf, Nested, Record, of
from polo.protocol.records import MAX_SHARDS, SignedRecord

MAX_SEGMENT = 2**31 - 1
MAX_PLACES = 100_000
_SHARD = Integer(1, MAX_SHARDS)
_TIME = Integer(0, canonical.MAX_SAFE_INTEGER)

PARTS = ("model", "rest", "samples", "end-model", "end-rest")
"""Files of an answer about one segment."""


@dataclass(frozen=True, order=True)
class Place(Record):
    """One segment of a chain: its shard, and its number in the shard, from 0."""

    shard: int = of(_SHARD)
    segment: int = of(Integer(0, MAX_SEGMENT))

    def __str__(self) -> str:
        return f"segment {self.segment} of shard {self.shard}"

    def file(self, part: str) -> str:
        """Name of a file of an answer about this segment."""
        return f"{self.shard:06d}-{self.segment:010d}.{part}.safetensors"


ANSWER_FILE = "answer.json"
"""The signed part of an answer."""


def sealing_file(shard: int) -> str:
    """Name of the file of an answer about the sealing of a shard."""
    return f"{shard:06d}-sealing.model.safetensors"


def sealed_file(shard: int) -> str:
    """Name of the file of an answer that shows W_x, where it is asked for while x is the newest."""
    return f"{shard:06d}-sealed.model.safetensors"


@dataclass(frozen=True)
class Challenge(Record):
    """The segments and sealings that a verifier has drawn from a signed proof.

    Attributes:
        proof: Digest of the manifest they were drawn from; of what a registry draws while the chain
            grows, the leaf of the newest shard's entry in its log.
        segments: Segments to show, sorted, each once.
        sealings: Shards whose sealing to show, sorted, each once.
        ends: Whether the states at the ends of the segments are wanted, too: where the
            verifier's machine rounds otherwise than the prover's.
        made: Seconds since 1970 by the verifier's clock.
    """

    FORMAT = "polo/challenge/1"

    proof: bytes = of(Bytes(32))
    segments: tuple[Place, ...] = of(ListOf(Nested(Place), MAX_PLACES))
    sealings: tuple[int, ...] = of(ListOf(_SHARD, MAX_SHARDS))
    ends: bool = of(Boolean())
    made: int = of(_TIME)

    @classmethod
    def from_json(cls, value: Any, place: str) -> Self:
        """See `Record`; places out of order or named twice are refused."""
        challenge = super().from_json(value, place)
        segments, sealings = challenge.segments, challenge.sealings
        if segments != tuple(sorted(set(segments))) or sealings != tuple(sorted(set(sealings))):
            raise FormatError("places are not sorted, or appear twice", place=place)
        return challenge

    @functools.cached_property
    def digest(self) -> bytes:
        """What an answer calls this challenge by."""
        return tagged("polo/challenge/1", self.to_bytes())

    @property
    def shards(self) -> list[int]:
        """Shards that something is wanted of, sorted."""
        return sorted({place.shard for place in self.segments} | set(self.sealings))


@dataclass(frozen=True)
class Secret(Record):
    """The secret of one shard's obfuscation, opened."""

    shard: int = of(_SHARD)
    # Left out of `repr`, so that no log or notebook shows it by accident.
    secret: bytes = of(Bytes(32), repr=False)


@dataclass(frozen=True)
class Answer(SignedRecord):
    """What a prover says in answer to a challenge, signed.

    The files beside it need no list: the challenge says which there are, and what is in them is
    bound by digests that were committed to before.

    Attributes:
        challenge: Digest of the challenge.
        secrets: Secrets of the sealings that were asked for.
        signature: The prover's.
    """

    FORMAT = "polo/answer/1"

    challenge: bytes = of(Bytes(32))
    secrets: tuple[Secret, ...] = of(ListOf(Nested(Secret), MAX_SHARDS))
    signature: bytes = of(Bytes(64), default=bytes(64))
