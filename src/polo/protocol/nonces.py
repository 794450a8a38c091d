"""Nonces: drawn offline at enrolment, or handed out live in receipts; one way to check both.

Offline, the issuer draws all nonces and signs the Merkle root over their salted hashes: one
can be shown alone, none can be made up. Live, the receipt for shard x−1 carries the salted
hash of μ_x, which did not exist before.

Specification: docs/protocol.md, section 8.
"""

from collections.abc import Callable, Sequence

from polo.errors import FormatError, SignatureError
from polo.protocol import merkle, signing
from polo.protocol.digest import tagged, u32
from polo.protocol.records import Enrolment, Manifest, Nonce, NonceTerms, Receipt


def leaf(nonce: Nonce) -> bytes:
    """The salted hash of a nonce."""
    return tagged("polo/nonce/1", u32(nonce.shard), nonce.salt, nonce.nonce)


def draw(count: int, random: Callable[[int], bytes]) -> tuple[NonceTerms, tuple[Nonce, ...]]:
    """Draw offline nonces for shards 1 to `count`.

    Args:
        count: How many.
        random: Returns that many random bytes, such as `secrets.token_bytes`.
    """
    bare = [Nonce(x, random(32), random(32), ()) for x in range(1, count + 1)]
    leaves = [leaf(nonce) for nonce in bare]
    opened = tuple(
        Nonce(nonce.shard, nonce.nonce, nonce.salt, tuple(path))
        for nonce, path in zip(bare, merkle.paths(leaves), strict=True)
    )
    return NonceTerms("offline", merkle.root(leaves), count), opened


def check(
    nonce: Nonce,
    enrolment: Enrolment,
    receipts: Sequence[Receipt | None],
    verifier: signing.SignatureVerifier,
    *,
    previous: bytes = b"",
    place: str,
) -> None:
    """Refuse a nonce that the issuer did not commit to.

    Args:
        nonce: The opened nonce of shard x.
        enrolment: The enrolment whose issuer answers for it.
        receipts: Receipts of shards 0, 1, …; consulted for live nonces only.
        verifier: Checks the receipts' signatures.
        previous: Root of the checkpoint that the shard starts from, which a live nonce answers.
        place: What to name in errors.
    """
    if enrolment.nonces.kind == "offline":
        _check_offline(nonce, enrolment.nonces, place)
    else:
        _check_live(nonce, enrolment, receipts, verifier, previous, place)


def receipts_of(manifest: Manifest) -> list[Receipt | None]:
    """Receipts of the start and of every shard, in order."""
    return [manifest.start.receipt, *(shard.receipt for shard in manifest.shards)]


def _check_offline(nonce: Nonce, terms: NonceTerms, place: str) -> None:
    if nonce.shard > terms.count:
        raise FormatError(f"nonce {nonce.shard} of {terms.count}", place=place)
    tree = merkle.root_from_multiproof(
        terms.count, {nonce.shard - 1: leaf(nonce)}, nonce.path, place=place
    )
    if tree != terms.root:
        raise SignatureError("this nonce is not among those the issuer committed to", place=place)


def _check_live(
    nonce: Nonce,
    enrolment: Enrolment,
    receipts: Sequence[Receipt | None],
    verifier: signing.SignatureVerifier,
    previous: bytes,
    place: str,
) -> None:
    receipt = receipts[nonce.shard - 1] if nonce.shard <= len(receipts) else None
    if receipt is None:
        raise SignatureError(f"there is no receipt for shard {nonce.shard - 1}", place=place)
    signing.check(receipt, enrolment.issuer, verifier, place=place)
    if receipt.enrolment != enrolment.digest or receipt.shard != nonce.shard - 1:
        raise SignatureError("the receipt belongs to another shard or enrolment", place=place)
    if receipt.root != previous:
        raise SignatureError("the receipt is for other weights than the chain's", place=place)
    if nonce.path or receipt.next_nonce != leaf(nonce):
        raise SignatureError("this nonce is not the one in the receipt", place=place)
