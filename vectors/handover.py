"""Vectors of transfers: two manifests, the transfer between them, and ones that do not lead."""

from dataclasses import replace

from vectors.documents import apply, chain_json
from vectors.kit import ISSUER_SEED, PROVER_SEED, Json, fixed, key_of

from polo.protocol import signing, transfer
from polo.protocol.records import Manifest, NonceTerms, StartTerms, Transfer

BUYER_SEED = "polo vectors: buyer"
OTHER = "11" * 32


def _buyer(seller: Manifest) -> Manifest:
    """A chain of one shard that goes on where the seller's ends."""
    key = key_of(BUYER_SEED)
    terms = replace(seller.terms, start=StartTerms("parent", seller.last_root))
    enrolment = replace(
        seller.enrolment,
        terms=terms,
        identity=key.public_key,
        nonces=NonceTerms("offline", fixed("polo vectors: buyer's nonces", 32), 5),
        issued=1_700_001_000,
    )
    first = replace(
        seller.shards[0], previous=seller.last_root, root=fixed("polo vectors: root 4", 32)
    )
    manifest = replace(
        seller,
        enrolment=signing.sign(enrolment, key_of(ISSUER_SEED)),
        start=replace(seller.start, root=seller.last_root),
        shards=(first,),
    )
    return signing.sign(manifest, key)


def transfer_json() -> Json:
    """A transfer with its message, its digest, and changes that make it lead nowhere."""
    seller = Manifest.from_bytes(chain_json()["manifest"].encode(), "vector")
    buyer = _buyer(seller)
    bare = Transfer(
        proof=seller.digest,
        root=seller.last_root,
        first=buyer.shards[0].root,
        enrolment=buyer.enrolment.digest,
        seller=seller.enrolment.identity,
        buyer=buyer.enrolment.identity,
        made=1_700_002_000,
        index=None,
    )
    given = transfer.signed(transfer.signed(bare, key_of(BUYER_SEED)), key_of(PROVER_SEED))
    documents = {"transfer": given.to_json(), "seller": seller.to_json(), "buyer": buyer.to_json()}
    return {
        "seller": seller.to_bytes().decode(),
        "buyer": buyer.to_bytes().decode(),
        "transfer": given.to_bytes().decode(),
        "message": given.message().decode(),
        "seller_digest": seller.digest.hex(),
        "digest": given.digest.hex(),
        "cases": [
            {"name": name, "changes": changes, "leads": _leads(apply(documents, changes))}
            for name, changes in _cases(seller).items()
        ],
    }


def _cases(seller: Manifest) -> dict[str, list[Json]]:
    fields = ("proof", "root", "first", "enrolment", "seller", "buyer")
    cases: dict[str, list[Json]] = {"nothing": []}
    for field in fields:
        cases[f"another {field}"] = [{"at": ["transfer", field], "value": OTHER}]
    one = seller.enrolment.identity.hex()
    way, free = ["buyer", "enrolment", "terms", "start"], {"kind": "free", "parent": None}
    cases |= {
        "another day": [{"at": ["transfer", "made"], "value": 5}],
        "a place in a log": [{"at": ["transfer", "index"], "value": 5}],
        "seller and buyer are one": [
            {"at": ["transfer", "buyer"], "value": one},
            {"at": ["buyer", "enrolment", "identity"], "value": one},
        ],
        "the seller closed it otherwise": [{"at": ["seller", "outside"], "value": 1}],
        "the buyer starts elsewhere": [{"at": ["buyer", "start", "root"], "value": OTHER}],
        "the buyer may start anywhere": [{"at": way, "value": free}],
        "the buyer has no shard": [{"at": ["buyer", "shards"], "value": []}],
        "the buyer's manifest binds it": [{"at": ["buyer", "transfer"], "value": OTHER}],
    }  # fmt: skip
    return cases


def _leads(documents: Json) -> bool:
    faults = transfer.faults(
        Transfer.from_json(documents["transfer"], "vector"),
        Manifest.from_json(documents["seller"], "vector"),
        Manifest.from_json(documents["buyer"], "vector"),
    )
    return not list(faults)
