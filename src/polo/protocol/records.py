"""The records that prover, issuer and verifier exchange.

They hold no floats: rates are integers in millionths, times whole seconds, money minor units.
Fields that later levels of evidence need are there already, empty, so that a proof of today
is read by the verifier of tomorrow.

Specification: docs/protocol.md, section 3.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from polo.errors import TermsError
from polo.protocol import canonical
from polo.protocol.detection import MILLION, Reading
from polo.protocol.digest import tagged
from polo.protocol.fields import (
    Boolean,
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
from polo.protocol.layout import MAX_BYTES, MAX_TENSORS

MAX_SHARDS = 10_000
MAX_FILES = 4 * MAX_SHARDS
MAX_BITS = 2**17
MAX_DENSE_WEIGHTS = 2**14
LEAST_FRACTION = -(-MILLION // 256)
"""Fewest millionths of weights that noise can touch: one byte decides about each weight."""

LEVELS = ("chain", "receipts", "uniqueness", "progress", "replay")

_HASH = Bytes(32)
_KEY = Bytes(32)
_SIGNATURE = Bytes(64)
_UNSIGNED = bytes(64)
_RATE = Integer(0, MILLION)
_COUNT = Integer(0, canonical.MAX_SAFE_INTEGER)
_TIME = Integer(0, canonical.MAX_SAFE_INTEGER)
_SHARD = Integer(1, MAX_SHARDS)
_WORD = Text(64, r"[A-Za-z0-9][A-Za-z0-9._-]*")
_METRIC = Text(64, r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_TENSOR = Text(512, r"[^\x00-\x1f\x7f]+")
_SETTING = Text(256)

FILE_PATTERN = (
    r"layout\.json"
    r"|checkpoints/[0-9]{6}(\.delta)?\.safetensors"
    r"|openings/[0-9]{6}\.safetensors"
    r"|nonces/[0-9]{6}\.json"
    r"|evidence/[a-z]{1,16}/[0-9]{6}\.(json|safetensors)"
)
"""Every path that a proof may contain beside its manifest."""


@dataclass(frozen=True)
class TaskTerms(Record):
    """Which task, and how good each shard must be."""

    name: str = of(Text(128, r"[A-Za-z0-9][A-Za-z0-9._:-]*"))
    version: int = of(Integer(1, 2**31 - 1))
    metric: str = of(_METRIC)
    floor: tuple[int, ...] = of(ListOf(_RATE, MAX_SHARDS))

    def floor_of(self, shard: int) -> int:
        """The least metric of a shard; the last number of a curve holds from there on."""
        return self.floor[min(shard, len(self.floor)) - 1] if self.floor else 0


@dataclass(frozen=True)
class SchemeTerms(Record):
    """How a mark is pressed in and read.

    Attributes:
        name: The scheme, as registered.
        bits: Bits of a mark.
        block: Weights per block.
        load: Bits per weight of a block, in millionths.
        key: `block` for one small key per block, `dense` for one key over all of them.
        strength: λ, in millionths.
        reduction: Whether the bits' losses are summed or averaged.
        every: The mark's gradient is added every so many steps, that many times as strong.
    """

    name: str = of(_WORD)
    bits: int = of(Integer(8, MAX_BITS))
    block: int = of(Integer(16, 2048))
    load: int = of(Integer(1, MILLION))
    key: str = of(Choice(("block", "dense")))
    strength: int = of(Integer(0, 1000 * MILLION))
    reduction: str = of(Choice(("sum", "mean")))
    every: int = of(Integer(1, 1024))

    @property
    def bits_per_block(self) -> int:
        """Bits that each block carries."""
        return self.block * self.load // MILLION

    @property
    def blocks(self) -> int:
        """Blocks that a mark takes."""
        return -(-self.bits // self.bits_per_block) if self.bits_per_block else 0

    def check(self, place: str) -> None:
        """Refuse schemes that cannot be laid out."""
        if self.block & (self.block - 1):
            raise TermsError(f"blocks of {self.block} weights; use a power of two", place=place)
        if not self.bits_per_block or self.bits % self.bits_per_block:
            raise TermsError(
                f"{self.bits} bits are no multiple of the {self.bits_per_block} that a block of "
                f"{self.block} weights carries at this load",
                place=place,
            )
        if self.key == "dense" and self.blocks * self.block > MAX_DENSE_WEIGHTS:
            raise TermsError(
                f"a dense key over {self.blocks * self.block} weights; at most "
                f"{MAX_DENSE_WEIGHTS}: use block keys or fewer bits",
                place=place,
            )


@dataclass(frozen=True)
class Thresholds(Record):
    """When a shard is sealed (`embed`), and when its mark counts as read (both others)."""

    embed: int = of(_RATE)
    verify: int = of(_RATE)
    log2_p: int = of(Integer(-MAX_BITS, 0))


@dataclass(frozen=True)
class FinishTerms(Record):
    """How far the finishing step may go, relative to a block's norm, in millionths."""

    budget: int = of(_RATE)
    margin: int = of(_RATE)


@dataclass(frozen=True)
class NoiseTerms(Record):
    """Bounds of the obfuscation, in millionths: of the weights, of a tensor's RMS."""

    fraction: int = of(_RATE)
    least: int = of(_RATE)
    most: int = of(_RATE)


@dataclass(frozen=True)
class ShardTerms(Record):
    """How many shards there may and must be, and how short one may be."""

    least: int = of(Integer(1, MAX_SHARDS))
    most: int = of(Integer(1, MAX_SHARDS))
    fewest_steps: int = of(Integer(0, 2**31 - 1))


@dataclass(frozen=True)
class StartTerms(Record):
    """Where training starts: anywhere, from a drawn initialisation, or from a parent model."""

    kind: str = of(Choice(("free", "derived", "parent")))
    parent: bytes | None = of(Nullable(_HASH))


@dataclass(frozen=True)
class EvidenceTerms(Record):
    """One required level of evidence and its settings."""

    level: str = of(Choice(LEVELS))
    settings: Mapping[str, str] = of(MapOf(_WORD, _SETTING, 64))


@dataclass(frozen=True)
class Reward(Record):
    """One line of a reward schedule: what validated shards and accuracy pay."""

    shards: int = of(_SHARD)
    metric: int = of(_RATE)
    amount: int = of(_COUNT)


@dataclass(frozen=True)
class Deposit(Record):
    """What a prover stakes."""

    currency: str = of(_WORD)
    amount: int = of(_COUNT)


@dataclass(frozen=True)
class Terms(Record):
    """What the verifier fixes at enrolment; the prover chooses none of it."""

    FORMAT = "polo/terms/1"

    task: TaskTerms = of(Nested(TaskTerms))
    layout: bytes = of(_HASH)
    carrier: tuple[str, ...] = of(ListOf(_TENSOR, MAX_TENSORS))
    scheme: SchemeTerms = of(Nested(SchemeTerms))
    thresholds: Thresholds = of(Nested(Thresholds))
    finish: FinishTerms = of(Nested(FinishTerms))
    noise: NoiseTerms = of(Nested(NoiseTerms))
    shards: ShardTerms = of(Nested(ShardTerms))
    start: StartTerms = of(Nested(StartTerms))
    evidence: tuple[EvidenceTerms, ...] = of(ListOf(Nested(EvidenceTerms), len(LEVELS)))
    history: str = of(Choice(("any", "all", "streaming", "after-close")))
    base: bytes | None = of(Nullable(_HASH))
    data: bytes | None = of(Nullable(_HASH))
    rewards: tuple[Reward, ...] = of(ListOf(Nested(Reward), 1024))
    deposit: Deposit | None = of(Nullable(Nested(Deposit)))

    @classmethod
    def from_json(cls, value: Any, place: str) -> Self:
        """See `Record`; contradictions between the fields are refused too."""
        terms = super().from_json(value, place)
        terms.check(place)
        return terms

    def check(self, place: str = "terms") -> None:
        """Refuse terms that contradict themselves."""
        self.scheme.check(f"{place}.scheme")
        if self.shards.least > self.shards.most:
            raise TermsError("the least number of shards is above the most", place=place)
        if self.noise.least > self.noise.most:
            raise TermsError("the least noise is above the most", place=place)
        levels = [item.level for item in self.evidence]
        if levels != sorted(set(levels), key=LEVELS.index) or "chain" not in levels:
            raise TermsError("evidence levels: chain first, each once, in order", place=place)
        if (self.start.kind == "parent") != (self.start.parent is not None):
            raise TermsError("a parent start names its root, the others none", place=place)
        sealed = Reading(self.scheme.bits, -(-self.thresholds.embed * self.scheme.bits // MILLION))
        if not sealed.passes(self.thresholds.verify, self.thresholds.log2_p):
            raise TermsError(
                f"a shard sealed with {sealed.matches} of {sealed.bits} bits would not verify "
                f"(log2 p = {sealed.log2_p:.1f})",
                place=place,
            )
        if 0 < self.noise.fraction < LEAST_FRACTION:
            raise TermsError(
                f"noise on {self.noise.fraction} millionths of the weights touches none; ask for "
                f"none, or for at least {LEAST_FRACTION}",
                place=place,
            )
        if self.evidence[0].settings:
            raise TermsError("level chain has no settings", place=place)
        if ("replay" in levels) != (self.data is not None):
            raise TermsError("level replay and the root of the data go together", place=place)

    @functools.cached_property
    def digest(self) -> bytes:
        """What the seed binds."""
        return tagged("polo/terms/1", self.to_bytes())


@dataclass(frozen=True)
class NonceTerms(Record):
    """The issuer's commitment to nonces it has not shown yet.

    Attributes:
        kind: `offline` for a list drawn at enrolment, `live` for nonces that come in receipts.
        root: Merkle root over the salted nonces, or the hash of the registry's secret.
        count: Number of nonces in the list; 0 when live.
    """

    kind: str = of(Choice(("offline", "live")))
    root: bytes = of(_HASH)
    count: int = of(Integer(0, MAX_SHARDS))


class SignedRecord(Record):
    """A record whose last field, `signature`, is over the rest of it."""

    signature: bytes

    def message(self) -> bytes:
        """The bytes that are signed."""
        body = self.to_json()
        del body["signature"]
        return b"polo signature 1\n" + canonical.encode(body)

    def signed(self, signature: bytes) -> Self:
        """This record with a signature."""
        return dataclasses.replace(self, signature=signature)  # type: ignore[type-var]


@dataclass(frozen=True)
class Enrolment(SignedRecord):
    """Terms for one identity, with the commitment to its nonces, signed by the issuer."""

    FORMAT = "polo/enrolment/1"

    terms: Terms = of(Nested(Terms))
    identity: bytes = of(_KEY)
    nonces: NonceTerms = of(Nested(NonceTerms))
    issued: int = of(_TIME)
    issuer: bytes = of(_KEY)
    signature: bytes = of(_SIGNATURE, default=_UNSIGNED)

    @classmethod
    def from_json(cls, value: Any, place: str) -> Self:
        """See `Record`; the nonces must be as many as the terms allow shards."""
        enrolment = super().from_json(value, place)
        wanted = enrolment.terms.shards.most if enrolment.nonces.kind == "offline" else 0
        if enrolment.nonces.count != wanted:
            raise TermsError(f"{enrolment.nonces.count} nonces instead of {wanted}", place=place)
        return enrolment

    @functools.cached_property
    def digest(self) -> bytes:
        """What other records call this enrolment by."""
        return tagged("polo/enrolment/1", self.to_bytes())


@dataclass(frozen=True)
class Nonce(Record):
    """One nonce, opened: with the salt and path that lead to the issuer's commitment.

    Confidential: who knows it and the roots knows where the mark sits.
    """

    FORMAT = "polo/nonce/1"

    shard: int = of(_SHARD)
    # Left out of `repr`, so that no log or notebook shows them by accident.
    nonce: bytes = of(_HASH, repr=False)
    salt: bytes = of(_HASH, repr=False)
    path: tuple[bytes, ...] = of(ListOf(_HASH, 64))


@dataclass(frozen=True)
class Receipt(SignedRecord):
    """The registry's answer to a commitment: when, where in the log, and the next nonce.

    Attributes:
        enrolment: Digest of the enrolment.
        shard: Number of the shard that was committed to; 0 for the start.
        root: Its root.
        time: Seconds since 1970.
        origin: Name of the log.
        index: Place in the log.
        next_nonce: Salted hash of the next shard's nonce.
    """

    FORMAT = "polo/receipt/1"

    enrolment: bytes = of(_HASH)
    shard: int = of(Integer(0, MAX_SHARDS))
    root: bytes = of(_HASH)
    time: int = of(_TIME)
    origin: str = of(_SETTING)
    index: int = of(_COUNT)
    next_nonce: bytes = of(_HASH)
    signature: bytes = of(_SIGNATURE, default=_UNSIGNED)


@dataclass(frozen=True)
class Start(Record):
    """The checkpoint W_0 that the first shard starts from."""

    root: bytes = of(_HASH)
    secret: bytes = of(_HASH)
    receipt: Receipt | None = of(Nullable(Nested(Receipt)))


@dataclass(frozen=True)
class NoiseRecord(Record):
    """The obfuscation that sealing applied: its σ, and the commitment to the next secret."""

    sigma: int = of(_RATE)
    next_secret: bytes = of(_HASH)


@dataclass(frozen=True)
class FinishRecord(Record):
    """What the finishing step did: bits it turned, and the largest relative edit of a group."""

    turned: int = of(_COUNT)
    largest: int = of(_COUNT)


@dataclass(frozen=True)
class Shard(Record):
    """One sealed shard.

    Attributes:
        shard: Its number, from 1.
        previous: Root of the checkpoint it started from.
        root: Root of the checkpoint it ended with.
        epochs: Epochs spent in it.
        steps: Optimizer steps spent in it.
        matches: Bits of the mark that read right when it was sealed.
        metrics: What the prover measured on the sealed weights, in millionths.
        finish: What the finishing step did.
        noise: What the obfuscation did.
        evidence: Roots of the records of further levels.
        sealed: Seconds since 1970 by the prover's clock; shows nothing.
        receipt: The registry's answer, where there is a registry.
    """

    shard: int = of(_SHARD)
    previous: bytes = of(_HASH)
    root: bytes = of(_HASH)
    epochs: int = of(_COUNT)
    steps: int = of(_COUNT)
    matches: int = of(_COUNT)
    metrics: Mapping[str, int] = of(MapOf(_METRIC, Integer(-(2**52), 2**52), 64))
    finish: FinishRecord = of(Nested(FinishRecord))
    noise: NoiseRecord = of(Nested(NoiseRecord))
    evidence: Mapping[str, bytes] = of(MapOf(_WORD, _HASH, 16))
    sealed: int = of(_TIME)
    receipt: Receipt | None = of(Nullable(Nested(Receipt)))


@dataclass(frozen=True)
class File(Record):
    """A file of the proof: path, size, SHA-256."""

    path: str = of(Text(128, FILE_PATTERN))
    size: int = of(Integer(0, 2 * MAX_BYTES))
    sha256: bytes = of(_HASH)


@dataclass(frozen=True)
class Retention(Record):
    """Which checkpoints were kept: all, every k-th, or only openings and the last."""

    kind: str = of(Choice(("all", "every", "thin")))
    every: int = of(Integer(1, MAX_SHARDS))
    deltas: bool = of(Boolean())


@dataclass(frozen=True)
class Manifest(SignedRecord):
    """The proof itself: enrolment, start, shards, every file's digest, signed by the prover.

    Attributes:
        enrolment: The signed enrolment.
        start: The start of training.
        shards: All sealed shards, oldest first.
        retention: What was kept.
        files: Every other file of the proof, sorted by path.
        finished: Whether the prover closed the proof.
        outside: Optimizer steps after the last sealed shard; they are not part of the proof.
        transfer: Digest of the transfer by which the owner of this chain got the model, if any.
    """

    FORMAT = "polo/proof/1"

    enrolment: Enrolment = of(Nested(Enrolment))
    start: Start = of(Nested(Start))
    shards: tuple[Shard, ...] = of(ListOf(Nested(Shard), MAX_SHARDS))
    retention: Retention = of(Nested(Retention))
    files: tuple[File, ...] = of(ListOf(Nested(File), MAX_FILES))
    finished: bool = of(Boolean())
    outside: int = of(_COUNT)
    transfer: bytes | None = of(Nullable(_HASH))
    signature: bytes = of(_SIGNATURE, default=_UNSIGNED)

    @property
    def terms(self) -> Terms:
        """The terms of the enrolment."""
        return self.enrolment.terms

    @functools.cached_property
    def digest(self) -> bytes:
        """What a transfer calls this proof by, as it was signed."""
        return tagged("polo/proof/1", self.to_bytes())

    @property
    def last_root(self) -> bytes:
        """Root of the newest checkpoint."""
        return self.root_before(len(self.shards) + 1)

    def root_before(self, shard: int) -> bytes:
        """Root of the checkpoint that a shard started from, as the manifest lists it."""
        return self.start.root if shard == 1 else self.shards[shard - 2].root


@dataclass(frozen=True)
class Transfer(Record):
    """A model changes hands: the buyer's chain starts where the seller's ends. Both sign.

    Attributes:
        proof: Digest of the seller's signed manifest.
        root: The last root of the seller's chain, which the buyer's chain starts from.
        first: Root of the first shard that the buyer sealed.
        enrolment: Digest of the buyer's enrolment.
        seller: The seller's public key.
        buyer: The buyer's public key.
        made: Seconds since 1970 by the buyer's clock; shows nothing.
        index: Place in a registry's log; null offline.
        buyer_signature: The buyer's, over everything but the signatures.
        seller_signature: The seller's, over the same bytes.
    """

    FORMAT = "polo/transfer/1"

    proof: bytes = of(_HASH)
    root: bytes = of(_HASH)
    first: bytes = of(_HASH)
    enrolment: bytes = of(_HASH)
    seller: bytes = of(_KEY)
    buyer: bytes = of(_KEY)
    made: int = of(_TIME)
    index: int | None = of(Nullable(_COUNT))
    buyer_signature: bytes = of(_SIGNATURE, default=_UNSIGNED)
    seller_signature: bytes = of(_SIGNATURE, default=_UNSIGNED)

    def message(self) -> bytes:
        """The bytes that both sign."""
        body = self.to_json()
        del body["buyer_signature"], body["seller_signature"]
        return b"polo signature 1\n" + canonical.encode(body)

    @functools.cached_property
    def digest(self) -> bytes:
        """What the buyer's manifest calls this transfer by."""
        return tagged("polo/transfer/1", self.to_bytes())


@dataclass(frozen=True)
class Bundle(Record):
    """What part of a proof this is, so that what is left out on purpose is not missed.

    Nobody signs it: it only ever narrows what a verdict speaks of.

    Attributes:
        kind: `public` (no nonces, no weights), `verifier` (everything), or `buyer` (nonces and
            openings of chosen shards).
        shards: The shards that are shown, in order; all of them for a verifier, none in public.
    """

    FORMAT = "polo/bundle/1"

    kind: str = of(Choice(("public", "verifier", "buyer")))
    shards: tuple[int, ...] = of(ListOf(_SHARD, MAX_SHARDS))


def identity_of(public_key: bytes) -> bytes:
    """The fingerprint that stands for a public key: the paper's id."""
    return tagged("polo/identity/1", public_key)


@dataclass(frozen=True)
class NonceList(Record):
    """All offline nonces of an enrolment, as the issuer hands them to the prover.

    Confidential, like every nonce in it.
    """

    FORMAT = "polo/nonces/1"

    enrolment: bytes = of(_HASH)
    nonces: tuple[Nonce, ...] = of(ListOf(Nested(Nonce), MAX_SHARDS))
