"""Entries of a registry's log: what a prover signs of a checkpoint before it gets the next nonce.

An entry holds what the manifest will say of the shard, without the receipt that answers it. The
next nonce is made out of the entry's leaf hash and a secret that the registry committed to in the
enrolment, so the registry cannot choose it, and nobody can know it before the entry is there.

Specification: docs/protocol.md, section 18.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Self

from polo.errors import FormatError
from polo.protocol import canonical
from polo.protocol.digest import tagged
from polo.protocol.fields import Bytes, Integer, ListOf, Nested, Nullable, Record, Text, of
from polo.protocol.records import MAX_SHARDS, Nonce, Shard, SignedRecord, Start

MAX_CHECKPOINT = 16 * 1024
"""Characters of a signed checkpoint of the log, with all cosignatures."""


_LENGTH = 4


@dataclass(frozen=True)
class Entry(SignedRecord):
    """One commitment, as the log holds it.

    Attributes:
        enrolment: Digest of the enrolment.
        start: The start of the chain, without a receipt; None in the entry of a shard.
        shard: The sealed shard, without a receipt; None in the entry of the start.
        opening: SHA-256 of the file of the shard's opening; None for the start.
        signature: The prover's.
    """

    FORMAT = "polo/entry/1"

    enrolment: bytes = of(Bytes(32))
    start: Start | None = of(Nullable(Nested(Start)))
    shard: Shard | None = of(Nullable(Nested(Shard)))
    opening: bytes | None = of(Nullable(Bytes(32)))
    signature: bytes = of(Bytes(64), default=bytes(64))

    @classmethod
    def from_json(cls, value: Any, place: str) -> Self:
        """See `Record`; an entry is about a start or about a shard, and holds no receipt."""
        entry = super().from_json(value, place)
        if (entry.start is None) == (entry.shard is None):
            raise FormatError("an entry is about a start or a shard, one of them", place=place)
        if (entry.opening is None) != (entry.shard is None):
            raise FormatError("shards have openings, starts have none", place=place)
        if (entry.start or entry.shard).receipt is not None:  # type: ignore[union-attr]
            raise FormatError("a receipt, before there can be one", place=place)
        return entry

    @property
    def number(self) -> int:
        """The shard's number; 0 for the start."""
        return self.shard.shard if self.shard else 0

    @property
    def root(self) -> bytes:
        """Root of the weights that are committed to."""
        about = self.shard or self.start
        assert about is not None
        return about.root

    @property
    def leaf(self) -> bytes:
        """Its leaf hash in the log (RFC 6962)."""
        return leaf_hash(self.to_bytes())


def leaf_hash(entry: bytes) -> bytes:
    """The leaf hash of an entry's bytes (RFC 6962)."""
    return hashlib.sha256(b"\x00" + entry).digest()


def with_opening(entry: bytes, opening: bytes) -> bytes:
    r"""An entry and the file of its opening, as they travel in one request.

    >>> with_opening(b"{}", b"opening")
    b'\x00\x00\x00\x02{}opening'
    """
    return len(entry).to_bytes(_LENGTH, "big") + entry + opening


def without_opening(data: bytes) -> tuple[bytes, bytes]:
    """The entry and the opening in what `with_opening` gave; their bytes are not looked at."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    if len(data) <= end:
        raise FormatError("an entry and an opening, each whole, are expected", place="body")
    return data[_LENGTH:end], data[end:]


def secret_commitment(secret: bytes) -> bytes:
    """What `nonces.root` of a live enrolment is: the commitment to the registry's secret κ."""
    return tagged("polo/live-secret/1", secret)


def live_nonce(secret: bytes, entry: Entry) -> Nonce:
    """The nonce that answers an entry, with its salt: both come from κ and the leaf alone."""
    return nonce_after(secret, entry.number, entry.leaf)


def nonce_after(secret: bytes, number: int, leaf: bytes) -> Nonce:
    """The nonce that answers the entry of a shard, by its leaf hash."""
    return Nonce(
        number + 1,
        hmac.digest(secret, b"polo/live-nonce/1" + leaf, "sha256"),
        hmac.digest(secret, b"polo/live-salt/1" + leaf, "sha256"),
        (),
    )


@dataclass(frozen=True)
class Inclusion(Record):
    """That an entry is in the log.

    Attributes:
        entry: The entry.
        index: Its place.
        size: Size of the tree that the path leads to the root of.
        path: Hashes from the leaf up (RFC 6962).
        checkpoint: The signed checkpoint of that tree, as a C2SP note.
    """

    entry: Entry = of(Nested(Entry))
    index: int = of(Integer(0, canonical.MAX_SAFE_INTEGER))
    size: int = of(Integer(1, canonical.MAX_SAFE_INTEGER))
    path: tuple[bytes, ...] = of(ListOf(Bytes(32), 64))
    checkpoint: str = of(Text(MAX_CHECKPOINT, r"[\x20-\x7e\n\u2014]+"))


@dataclass(frozen=True)
class Inclusions(Record):
    """The file `evidence/receipts/<x>.json`: shard x in the log; with shard 1 the start, too."""

    FORMAT = "polo/inclusions/1"

    inclusions: tuple[Inclusion, ...] = of(ListOf(Nested(Inclusion), MAX_SHARDS))
