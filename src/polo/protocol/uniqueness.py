"""A registry's statement that it looked for every registered chain in a model, and what it found.

Whether a model is somebody else's cannot be seen from its own proof: it takes everybody's seeds,
which only the registry has. So level uniqueness is a signed statement.

Specification: docs/protocol.md, section 20.
"""

from dataclasses import dataclass

from polo.protocol.canonical import MAX_SAFE_INTEGER
from polo.protocol.fields import Boolean, Bytes, Choice, Integer, ListOf, Nested, Record, Text, of
from polo.protocol.records import SignedRecord

MAX_CLAIMS = 1000
MAX_LOG2 = 10**9
RELATIONS = ("none", "own", "parent")

_HASH = Bytes(32)
_COUNT = Integer(0, MAX_SAFE_INTEGER)


@dataclass(frozen=True)
class Resemblance(Record):
    """A chain whose marks are in the weights.

    Attributes:
        enrolment: Digest of its enrolment.
        earlier: Whether marks of it were in the log before the commitment to these weights.
        relation: `own` if the same owner has it, `parent` if the chain says that it goes on from
            it, `none` otherwise.
        rarity: −log2 of the chance by luck, corrected for all chains, rounded down.
    """

    enrolment: bytes = of(_HASH)
    earlier: bool = of(Boolean())
    relation: str = of(Choice(RELATIONS))
    rarity: int = of(Integer(0, MAX_LOG2))


@dataclass(frozen=True)
class Uniqueness(SignedRecord):
    """The file `evidence/uniqueness/<S>.json`, signed by the enrolment's issuer.

    Attributes:
        enrolment: Digest of the enrolment of the chain that the weights belong to.
        root: Root of the weights: that of its last shard.
        origin: Name of the registry's log.
        size: Entries of the log when it was looked at.
        chains: Chains that were looked for.
        unread: Chains among them of whose carrier these weights have no tensor.
        time: Seconds since 1970.
        claims: Chains whose marks are there, its own lineage included; it itself is not.
        signature: The issuer's.
    """

    FORMAT = "polo/uniqueness/1"

    enrolment: bytes = of(_HASH)
    root: bytes = of(_HASH)
    origin: str = of(Text(256))
    size: int = of(_COUNT)
    chains: int = of(_COUNT)
    unread: int = of(_COUNT)
    time: int = of(_COUNT)
    claims: tuple[Resemblance, ...] = of(ListOf(Nested(Resemblance), MAX_CLAIMS))
    signature: bytes = of(Bytes(64), default=bytes(64))

    @property
    def objections(self) -> tuple[Resemblance, ...]:
        """Chains that were there earlier and have nothing to do with the owner."""
        return tuple(claim for claim in self.claims if claim.earlier and claim.relation == "none")
