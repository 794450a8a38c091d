"""Transfers: the buyer's chain goes on where the seller's ends, and both sign that it does.

A transfer binds the seller's signed proof and its last root to the buyer's enrolment and first
root. The buyer's manifest binds the transfer by its digest, and so on back to the first owner.

Specification: docs/protocol.md, sections 3.10 and 10.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from polo.errors import SignatureError
from polo.protocol import signing
from polo.protocol.chain import Fault
from polo.protocol.records import Manifest, Transfer, identity_of

MAX_ANCESTORS = 100
"""Most earlier owners of a model; a verifier reads all of their proofs."""

CHECK = "transfer"
"""The check that faults of a transfer belong to."""


def faults(transfer: Transfer, seller: Manifest, buyer: Manifest) -> Iterator[Fault]:
    """Everything in which a transfer does not lead from this seller's proof to this buyer's.

    Args:
        transfer: The transfer; its signatures are checked by `check`.
        seller: The proof that was handed on.
        buyer: The proof of the chain that goes on.
    """
    start, first = buyer.terms.start, buyer.shards[:1]
    rules = [
        (transfer.seller != transfer.buyer, "seller and buyer are one key"),
        (transfer.seller == seller.enrolment.identity, "the seller did not own the proof before"),
        (transfer.buyer == buyer.enrolment.identity, "the buyer does not own this proof"),
        (transfer.proof == seller.digest, "it is about another proof, or another state of it"),
        (bool(seller.shards), "the chain before has no shard, so nothing was handed on"),
        (transfer.root == seller.last_root, "what it hands on is not the end of the chain before"),
        (transfer.root == buyer.start.root, "this chain does not start from what it hands on"),
        (
            start.kind == "parent" and start.parent == transfer.root,
            "the terms of this chain do not name what it hands on as their parent",
        ),
        (
            transfer.enrolment == buyer.enrolment.digest,
            "it is about another enrolment than this chain's",
        ),
        (
            [shard.root for shard in first] == [transfer.first],
            "it is about another first shard than this chain's",
        ),
        (
            transfer.index is None or buyer.enrolment.nonces.kind == "live",
            "it names a place in a log, where the enrolment is offline",
        ),
    ]
    for holds, detail in rules:
        if not holds:
            yield Fault(CHECK, 0, detail)


def repeated(owners: Sequence[Manifest]) -> Iterator[Fault]:
    """Weights of earlier owners that come again in the chain of a later one.

    Args:
        owners: The proofs of all owners, oldest first.
    """
    seen = {owners[0].start.root: 1}
    for number, manifest in enumerate(owners, start=1):
        for shard in manifest.shards:
            if seen.setdefault(shard.root, number) != number:
                detail = f"shard {shard.shard} of owner {number} ends in weights that owner"
                yield Fault(CHECK, 0, f"{detail} {seen[shard.root]} had")


def check(transfer: Transfer, verifier: signing.SignatureVerifier, *, place: str) -> None:
    """Refuse a transfer that not both of them signed."""
    message = transfer.message()
    for who, key, signature in (
        ("buyer", transfer.buyer, transfer.buyer_signature),
        ("seller", transfer.seller, transfer.seller_signature),
    ):
        if not any(signature):
            raise SignatureError(f"the {who} has not signed it", place=place)
        if not verifier.verify(key, message, signature):
            name = identity_of(key).hex()[:16]
            raise SignatureError(f"the {who}, {name}…, did not sign these bytes", place=place)


def signed(transfer: Transfer, signer: signing.Signer) -> Transfer:
    """The transfer with the signature of its buyer or its seller, whoever the signer is."""
    if transfer.seller == transfer.buyer:
        raise SignatureError("seller and buyer are one key; there is nothing to hand over")
    signature = signer.sign(transfer.message())
    if signer.public_key == transfer.buyer:
        return dataclasses.replace(transfer, buyer_signature=signature)
    if signer.public_key == transfer.seller:
        return dataclasses.replace(transfer, seller_signature=signature)
    raise SignatureError("this key belongs neither to the seller nor to the buyer")
