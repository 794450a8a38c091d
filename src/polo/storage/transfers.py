"""Handing a model on: the buyer asks, the seller signs, the buyer takes the proofs over.

The buyer's chain is a proof of its own that starts from the seller's last checkpoint. Taking over
copies the proofs of all earlier owners into `ancestors/`, without weights, writes `transfer.json`,
and then replaces the manifest, which binds both by the digest of the transfer.

A seller's signatures are noted in `<proof>.state/transfers.json` before they are given, so that
nobody sells the same model twice by mistake. Whoever means to only has to use a copy.

Specification: docs/protocol.md, sections 3.10 and 12.5.
"""

import time
from pathlib import Path

from polo.errors import ChainError, LimitError, SignatureError, StoreError
from polo.keys import Ed25519Verifier
from polo.protocol import chain, signing, transfer
from polo.protocol.records import Manifest, Transfer, identity_of
from polo.storage import ancestors, ledger
from polo.storage.ancestors import Link, refuse, signed_manifest
from polo.storage.bundle import opened
from polo.storage.folder import TRANSFER_FILE, ProofFolder
from polo.storage.writer import ProofWriter

KEY_ADVICE = (
    "Use the private key that this proof was enrolled with. Without it nobody can hand the proof "
    "on; see Keys in docs/threat-model.md."
)


def request(buyer: Path | str, seller: Path | str, key: signing.Signer) -> Transfer:
    """Ask for a model: the transfer that leads to the buyer's chain, signed by the buyer.

    Args:
        buyer: The buyer's proof, with at least one shard.
        seller: The seller's proof, or what the seller shows of it: a folder, or a bundle.
        key: The buyer's key.
    """
    ours = _own(buyer, key)
    with opened(seller) as folder:
        theirs = _sound(folder)[-1].manifest
    _check_start(ours, theirs, str(buyer))
    asked = Transfer(
        proof=theirs.digest,
        root=theirs.last_root,
        first=ours.shards[0].root,
        enrolment=ours.enrolment.digest,
        seller=theirs.enrolment.identity,
        buyer=ours.enrolment.identity,
        made=int(time.time()),
        index=None,
    )
    refuse(transfer.faults(asked, theirs, ours), str(buyer))
    return transfer.signed(asked, key)


def sign(asked: Transfer, seller: Path | str, key: signing.Signer) -> Transfer:
    """Hand a model on: the transfer with the seller's signature, noted in the seller's ledger.

    Args:
        asked: What the buyer requested.
        seller: The seller's proof, as it was when the buyer looked at it.
        key: The seller's key.
    """
    manifest = _own(seller, key)
    place = TRANSFER_FILE
    if asked.seller != key.public_key:
        raise SignatureError("this transfer asks somebody else", place=place, advice=KEY_ADVICE)
    if not Ed25519Verifier().verify(asked.buyer, asked.message(), asked.buyer_signature):
        raise SignatureError(
            "the buyer's signature does not hold: it was altered, or never signed",
            place=place,
            advice="Ask the buyer for a new one: polo transfer request",
        )
    if asked.root != manifest.last_root or asked.proof != manifest.digest:
        raise ChainError(
            _not_the_end(asked.root, manifest),
            place=place,
            advice="Show the buyer the proof as it is now, and let them request again.",
        )
    writer = ProofWriter(seller, key, manifest.retention)
    try:
        given = transfer.signed(asked, key)
        ledger.enter(writer.state_path / ledger.LEDGER_FILE, given, manifest)
    finally:
        writer.close()
    return given


def complete(
    buyer: Path | str, given: Transfer, seller: Path | str, key: signing.Signer
) -> Manifest:
    """Take a model over: copy the proofs of its earlier owners in, and bind the transfer.

    Marks and files are copied as they were signed; whether they hold is for `polo.verify` to say.

    Args:
        buyer: The buyer's proof.
        given: The transfer, signed by both.
        seller: The seller's proof, or what the seller shows of it: a folder, or a bundle.
        key: The buyer's key.

    Returns:
        The buyer's manifest, signed anew.
    """
    ours = _own(buyer, key)
    if Path(seller).resolve().is_relative_to(Path(buyer).resolve()):
        raise StoreError("lies inside your own proof; give the seller's", place=str(seller))
    try:
        transfer.check(given, Ed25519Verifier(), place=TRANSFER_FILE)
    except SignatureError as error:
        error.advise("Both sign it: the buyer by polo transfer request, then the seller by sign.")
        raise
    if ours.transfer not in (None, given.digest):
        raise ChainError("this proof was taken over by another transfer", place=str(buyer))
    with opened(seller) as folder:
        earlier = _sound(folder)
        _check_all(given, earlier, ours, str(buyer))
        writer = ProofWriter(buyer, key, ours.retention)
        try:
            ancestors.copy_all(earlier, writer.path)
            return writer.take_over(given)
        finally:
            writer.close()


def _sound(seller: Path) -> list[Link]:
    """The owners up to the seller, none of whose chains has a fault."""
    links = ancestors.lineage(seller)
    for link in links:
        refuse(chain.faults(link.manifest), str(link.folder.path))
    return links


def _check_all(given: Transfer, earlier: list[Link], ours: Manifest, place: str) -> None:
    """Refuse what a verifier would: links, repetition, too many owners."""
    _check_start(ours, earlier[-1].manifest, place)
    refuse(transfer.faults(given, earlier[-1].manifest, ours), TRANSFER_FILE)
    refuse(transfer.repeated([*(link.manifest for link in earlier), ours]), place)
    if len(earlier) > transfer.MAX_ANCESTORS:
        raise LimitError(f"more than {transfer.MAX_ANCESTORS} earlier owners", place=place)


def _own(proof: Path | str, key: signing.Signer) -> Manifest:
    """The manifest of a proof that belongs to a key."""
    manifest = signed_manifest(ProofFolder(proof))
    if manifest.enrolment.identity != key.public_key:
        owner = identity_of(manifest.enrolment.identity).hex()[:16]
        raise SignatureError(
            f"this proof belongs to {owner}…, not to the key you gave",
            place=str(proof),
            advice=KEY_ADVICE,
        )
    return manifest


def _check_start(ours: Manifest, theirs: Manifest, place: str) -> None:
    """Refuse a buyer's chain that does not go on where the seller's ends."""
    start = ours.terms.start
    if start.parent is None:
        raise ChainError(
            "your terms name no parent, so your chain does not go on from the seller's",
            place=place,
            advice="Let the issuer enrol you with: polo enrol --parent SELLER_PROOF",
        )
    if start.parent != theirs.last_root:
        raise ChainError(_not_the_end(start.parent, theirs), place=place)
    if not ours.shards:
        raise ChainError(
            "you have sealed no shard yet; a transfer leads to the buyer's first one",
            place=place,
            advice="Fine-tune the model you bought until one shard is sealed.",
        )


def _not_the_end(root: bytes, seller: Manifest) -> str:
    """In which way a root is not what a seller's proof hands on."""
    numbers = [shard.shard for shard in seller.shards if shard.root == root]
    if root == seller.last_root:
        return "the seller's proof has been signed anew since, so it is another state of it"
    if numbers:
        return f"it starts from shard {numbers[0]}; the seller's proof ends in {len(seller.shards)}"
    return "it does not start from weights of the seller's proof"
