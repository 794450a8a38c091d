"""The chain walk: what a verifier must ask for, in which order, and what follows from it.

`faults` looks at the manifest alone: order, links, limits. `ChainWalk` then goes from the
newest shard to the oldest. It does no I/O: it says which nonce it needs, gives the seed of the
mark once the nonce holds, and takes what was read. Steps out of order raise.

Specification: docs/protocol.md, section 10.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polo.errors import ChainError, SignatureError
from polo.protocol import derivation, nonces, signing
from polo.protocol.detection import Reading
from polo.protocol.records import Enrolment, Manifest, Nonce, Shard, Terms, identity_of


@dataclass(frozen=True)
class Fault:
    """Something wrong with the manifest.

    Attributes:
        check: Which of `RULES`, or `files`.
        shard: The shard it concerns; 0 for the proof as a whole.
        detail: What was expected and what was found.
    """

    check: str
    shard: int
    detail: str


RULES = ("order", "links", "duplicates", "limits", "noise", "receipts")
"""The rules of `faults`, each with zero or more faults."""


def faults(manifest: Manifest) -> Iterator[Fault]:
    """Everything wrong with order, links, repetition, limits and declared noise."""
    terms = manifest.terms
    if not terms.shards.least <= len(manifest.shards) <= terms.shards.most:
        bounds = f"{terms.shards.least} to {terms.shards.most}"
        yield Fault("limits", 0, f"{len(manifest.shards)} shards; the terms ask for {bounds}")
    if manifest.start.receipt and manifest.enrolment.nonces.kind == "offline":
        yield Fault("receipts", 0, "a receipt for the start, where the enrolment is offline")
    seen = {manifest.start.root: 0}
    previous = manifest.start.root
    for number, shard in enumerate(manifest.shards, start=1):
        if shard.shard != number:
            yield Fault("order", number, f"shard {shard.shard} stands in place {number}")
        if shard.previous != previous:
            yield Fault("links", number, "it does not start where the shard before it ended")
        if shard.root in seen:
            yield Fault("duplicates", number, f"its root is that of shard {seen[shard.root]} again")
        yield from (replace(fault, shard=number) for fault in shard_faults(terms, shard))
        if shard.receipt and manifest.enrolment.nonces.kind == "offline":
            yield Fault("receipts", number, "a receipt, where the enrolment is offline")
        seen.setdefault(shard.root, number)
        previous = shard.root


def shard_faults(terms: Terms, shard: Shard) -> Iterator[Fault]:
    """What is wrong with a shard whatever the others are: limits and declared noise."""
    number = shard.shard
    if shard.steps < terms.shards.fewest_steps:
        yield Fault(
            "limits", number, f"{shard.steps} steps; the terms ask {terms.shards.fewest_steps}"
        )
    reading = Reading(terms.scheme.bits, min(shard.matches, terms.scheme.bits))
    if shard.matches > terms.scheme.bits or not reading.reaches(terms.thresholds.embed):
        yield Fault("limits", number, f"it was sealed with {shard.matches} bits, it says")
    if not terms.noise.least <= shard.noise.sigma <= terms.noise.most:
        yield Fault("noise", number, "its declared noise is outside the terms' bounds")


def misplaced(manifest: Manifest) -> Iterator[Fault]:
    """Listed files that have no meaning in this proof, and could pass for ones that do."""
    paths = [file.path for file in manifest.files]
    if paths != sorted(set(paths)):
        yield Fault("files", 0, "paths are not sorted, or appear twice")
    if "layout.json" not in paths:
        yield Fault("files", 0, "layout.json is not listed")
    asked = {item.level for item in manifest.terms.evidence} - {"chain"}
    whole = {path for path in paths if path.startswith("checkpoints/") and ".delta" not in path}
    for path in paths:
        folder, _, name = path.rpartition("/")
        number = int(name[:6]) if folder else 0
        first = 0 if folder == "checkpoints" else 1
        if folder and not first <= number <= len(manifest.shards):
            yield Fault("files", 0, f"{path} belongs to no shard")
        if folder.startswith("evidence/") and folder.partition("/")[2] not in asked:
            yield Fault("files", 0, f"{path} belongs to no level that the terms ask for")
        if ".delta" in path and path.replace(".delta", "") in whole:
            yield Fault("files", 0, f"{path} stands beside the whole checkpoint")


def seed_of(enrolment: Enrolment, nonce: Nonce, *, previous: bytes) -> bytes:
    """The seed of a shard's mark under an enrolment.

    Args:
        enrolment: The enrolment.
        nonce: The shard's nonce.
        previous: Root of the checkpoint that the shard starts from.
    """
    return derivation.seed(
        root=previous,
        shard=nonce.shard,
        nonce=nonce.nonce,
        identity=identity_of(enrolment.identity),
        terms=enrolment.terms.digest,
    )


@dataclass(frozen=True)
class MarkQuery:
    """The mark that is to be read next."""

    shard: int
    root: bytes
    seed: bytes


@dataclass(frozen=True)
class MarkResult:
    """What was read of one mark and whether it passes."""

    shard: int
    reading: Reading
    passed: bool


class ChainWalk:
    """Walks a manifest's shards from the newest to the oldest.

    For each shard: `shard` names it, `open` takes its nonce and returns the query, `read`
    takes the reading; or `skip` passes on where the mark cannot be read.

    Args:
        manifest: The chain.
        verifier: Checks the signatures of receipts.
        at: The shard to begin with; by default the newest.
    """

    def __init__(
        self, manifest: Manifest, verifier: signing.SignatureVerifier, *, at: int | None = None
    ) -> None:
        self._manifest = manifest
        self._verifier = verifier
        self._receipts = nonces.receipts_of(manifest)
        self._at = len(manifest.shards) if at is None else at
        self._query: MarkQuery | None = None

    @property
    def terms(self) -> Terms:
        """The terms that the chain was made under."""
        return self._manifest.terms

    @property
    def shard(self) -> int | None:
        """Number of the shard whose turn it is; None when the walk is over."""
        return self._at or None

    def open(self, nonce: Nonce, *, place: str) -> MarkQuery:
        """Check the nonce of the current shard and derive the seed of its mark."""
        if not self._at or self._query:
            raise ChainError("no nonce is expected now")
        if nonce.shard != self._at:
            raise SignatureError(f"a nonce of shard {nonce.shard}", place=place)
        enrolment, receipts = self._manifest.enrolment, self._receipts
        previous = self._manifest.root_before(self._at)
        nonces.check(nonce, enrolment, receipts, self._verifier, previous=previous, place=place)
        seed = seed_of(enrolment, nonce, previous=previous)
        self._query = MarkQuery(self._at, self._manifest.shards[self._at - 1].root, seed)
        return self._query

    def read(self, matches: int) -> MarkResult:
        """Take the number of matching bits of the current mark, and move on."""
        if not self._query:
            raise ChainError("no reading is expected now")
        terms = self._manifest.terms
        reading = Reading(terms.scheme.bits, matches)
        passed = reading.passes(terms.thresholds.verify, terms.thresholds.log2_p)
        self.skip()
        return MarkResult(self._at + 1, reading, passed)

    def skip(self) -> None:
        """Leave the current shard's mark unread, and move on."""
        if not self._at:
            raise ChainError("the walk is over")
        self._at -= 1
        self._query = None
