"""Vectors of documents: canonical JSON, signatures, nonces, the chain."""

import json
from dataclasses import replace

from vectors.kit import ISSUER_SEED, PROVER_SEED, Json, fixed, key_of, small_layout, small_terms

from polo.keys import Ed25519Verifier
from polo.protocol import canonical, chain, nonces, signing
from polo.protocol.records import (
    Enrolment,
    File,
    FinishRecord,
    Manifest,
    NoiseRecord,
    Nonce,
    NonceTerms,
    Receipt,
    Retention,
    Shard,
    Start,
    identity_of,
)

_EDWARDS_ORDER = 2**252 + 27742317777372353535851937790883648493

_VALID = {
    "empty object": "{}",
    "empty list": " [ ] ",
    "words": '[null, true, false, "", "plain"]',
    "integers": "[0, 1, -1, 9007199254740991, -9007199254740991]",
    "key order is by bytes for ASCII": '{"b": 1, "a": 2, "B": 3, "_": 4, "10": 5, "9": 6}',
    "key order is by UTF-16 code units": '{"\ufb03": 1, "\U00010000": 2, "é": 3, "e": 4}',
    "short escapes": '["\\u0008\\u0009\\u000a\\u000c\\u000d\\u0022\\u005c\\/"]',
    "long escapes": '["\\u0000\\u001F\\u007F\\u0080"]',
    "no escapes beyond ASCII": '["\\u03c3 \\u00d7 \\ud83d\\ude00"]',
    "nesting": '{"outer": {"inner": [[], [{}]], "a": []}, "n": -7}',
}
"""Name and a loose spelling of each document; the vectors hold the one canonical spelling."""

_REFUSED = {
    "nothing": (b"", "no document"),
    "two documents": (b"{}{}", "more after the end"),
    "a space": (b'{"a": 1}', "white space"),
    "a final newline": (b"{}\n", "white space"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "not JSON"),
    "keys out of order": (b'{"b":1,"a":2}', "order"),
    "order by code points": ('{"\ufb03":1,"\U00010000":2}'.encode(), "order"),
    "a key twice": (b'{"a":1,"a":1}', "repetition"),
    "a float": (b"[1.0]", "float"),
    "an exponent": (b"[1e2]", "float"),
    "not a number": (b"[NaN]", "float"),
    "infinity": (b"[-Infinity]", "float"),
    "minus zero": (b"[-0]", "spelling"),
    "a leading zero": (b"[01]", "not JSON"),
    "2^53": (b"[9007199254740992]", "beyond 2^53 - 1"),
    "-2^53": (b"[-9007199254740992]", "beyond 2^53 - 1"),
    "an escape that is not needed": (b'["\\u0041"]', "spelling"),
    "an escaped solidus": (b'["\\/"]', "spelling"),
    "an escape in capitals": (b'["\\u001F"]', "spelling"),
    "a long escape for a short one": (b'["\\u000a"]', "spelling"),
    "a raw control character": (b'["\x01"]', "not JSON"),
    "a lone surrogate": (b'["\\ud800"]', "no Unicode character"),
    "bytes that are not UTF-8": (b'["\xff"]', "not UTF-8"),
    "a surrogate in UTF-8": (b'["\xed\xa0\x80"]', "not UTF-8"),
    "seventeen around one": (b"[" * 17 + b"0" + b"]" * 17, "depth"),
}


def canonical_json() -> Json:
    """Documents with their canonical bytes, and documents to refuse."""
    valid = []
    for name, loose in _VALID.items():
        text = canonical.encode(json.loads(loose)).decode()
        valid.append({"name": name, "loose": loose, "canonical": text})
    deepest = "[" * 16 + "0" + "]" * 16
    valid.append({"name": "sixteen around one", "loose": deepest, "canonical": deepest})
    refused = [
        {"name": name, "hex": data.hex(), "why": why} for name, (data, why) in _REFUSED.items()
    ]
    return {"valid": valid, "refused": refused}


def _enrolment(commitment: NonceTerms) -> Enrolment:
    record = Enrolment(
        terms=small_terms(),
        identity=key_of(PROVER_SEED).public_key,
        nonces=commitment,
        issued=1_700_000_000,
        issuer=key_of(ISSUER_SEED).public_key,
    )
    return signing.sign(record, key_of(ISSUER_SEED))


def _drawn(label: str, count: int) -> tuple[NonceTerms, tuple[Nonce, ...]]:
    drawn = iter(range(2 * count))
    return nonces.draw(count, lambda size: fixed(f"{label} {next(drawn)}", size))


def signature_json() -> Json:
    """A fixed key, what it signs, and signatures to refuse."""
    commitment, _ = _drawn("polo vectors: signature nonces", 5)
    record = _enrolment(commitment)
    terms = record.terms
    large = int.from_bytes(record.signature[32:], "little") + _EDWARDS_ORDER
    return {
        "private_key": fixed(ISSUER_SEED, 32).hex(),
        "public_key": record.issuer.hex(),
        "fingerprint": identity_of(record.issuer).hex(),
        "terms": terms.to_bytes().decode(),
        "terms_digest": terms.digest.hex(),
        "enrolment": record.to_bytes().decode(),
        "enrolment_digest": record.digest.hex(),
        "message": record.message().decode(),
        "signature": record.signature.hex(),
        "refused": [
            {
                "name": "first bit turned",
                "signature": (bytes([record.signature[0] ^ 1]) + record.signature[1:]).hex(),
            },
            {
                "name": "S + L in place of S",
                "signature": (record.signature[:32] + large.to_bytes(32, "little")).hex(),
            },
            {"name": "zeros", "signature": bytes(64).hex()},
        ],
    }


def nonces_json() -> Json:
    """An offline list with its paths, and one live nonce with its receipt."""
    commitment, drawn = _drawn("polo vectors: offline nonces", 5)
    second = drawn[1]
    refused = {
        "another salt": replace(second, salt=fixed("polo vectors: another salt", 32)),
        "another nonce": replace(second, nonce=fixed("polo vectors: another nonce", 32)),
        "another shard": replace(second, shard=3),
        "a shard too many": replace(second, shard=6),
        "a path too short": replace(second, path=second.path[:-1]),
        "a path too long": replace(second, path=(*second.path, bytes(32))),
        "a path in another order": replace(second, path=second.path[::-1]),
    }
    return {
        "offline": {
            "enrolment": _enrolment(commitment).to_bytes().decode(),
            "leaves": [nonces.leaf(nonce).hex() for nonce in drawn],
            "nonces": [nonce.to_bytes().decode() for nonce in drawn],
            "refused": [
                {"name": name, "nonce": nonce.to_bytes().decode()}
                for name, nonce in refused.items()
            ],
        },
        "live": _live(),
    }


def _live() -> Json:
    enrolment = _enrolment(NonceTerms("live", fixed("polo vectors: registry", 32), 0))
    nonce = Nonce(
        2, fixed("polo vectors: live nonce", 32), fixed("polo vectors: live salt", 32), ()
    )
    receipt = Receipt(
        enrolment=enrolment.digest,
        shard=1,
        root=fixed("polo vectors: live root", 32),
        time=1_700_000_100,
        origin="log.example",
        index=41,
        next_nonce=nonces.leaf(nonce),
    )
    issuer, stranger = key_of(ISSUER_SEED), key_of(PROVER_SEED)
    signed = signing.sign(receipt, issuer)
    refused = {
        "of another shard": signing.sign(replace(receipt, shard=2), issuer),
        "of another enrolment": signing.sign(replace(receipt, enrolment=bytes(32)), issuer),
        "with another nonce": signing.sign(replace(receipt, next_nonce=bytes(32)), issuer),
        "signed by another key": signing.sign(receipt, stranger),
        "changed after signing": replace(signed, time=receipt.time + 1),
    }
    return {
        "enrolment": enrolment.to_bytes().decode(),
        "nonce": nonce.to_bytes().decode(),
        "receipt": signed.to_bytes().decode(),
        "message": signed.message().decode(),
        "refused": [
            {"name": name, "receipt": receipt.to_bytes().decode()}
            for name, receipt in refused.items()
        ],
    }


def _manifest(commitment: NonceTerms) -> Manifest:
    roots = [fixed(f"polo vectors: root {number}", 32) for number in range(4)]
    shards = tuple(
        Shard(
            shard=x,
            previous=roots[x - 1],
            root=roots[x],
            epochs=1,
            steps=20,
            matches=64,
            metrics={"accuracy": 250_000 * x},
            finish=FinishRecord(0, 0),
            noise=NoiseRecord(20_000, fixed(f"polo vectors: secret {x + 1}", 32)),
            evidence={},
            sealed=1_700_000_000 + 60 * x,
            receipt=None,
        )
        for x in range(1, 4)
    )
    layout = small_layout().to_bytes()
    manifest = Manifest(
        enrolment=_enrolment(commitment),
        start=Start(roots[0], fixed("polo vectors: secret 1", 32), None),
        shards=shards,
        retention=Retention("thin", 1, False),
        files=(File("layout.json", len(layout), fixed("polo vectors: layout file", 32)),),
        finished=True,
        outside=0,
        transfer=None,
    )
    return signing.sign(manifest, key_of(PROVER_SEED))


def chain_json() -> Json:
    """A manifest of three shards, the seeds of its marks, and changes with their faults."""
    commitment, drawn = _drawn("polo vectors: chain nonces", 5)
    manifest = _manifest(commitment)
    document = manifest.to_json()
    root = document["shards"][0]["root"]
    start = document["start"]["root"]
    changed: dict[str, list[Json]] = {
        "nothing": [],
        "a number out of place": [{"at": ["shards", 1, "shard"], "value": 3}],
        "a broken link": [{"at": ["shards", 1, "previous"], "value": "00" * 32}],
        "the root of shard 1 again": [
            {"at": ["shards", 1, "root"], "value": root},
            {"at": ["shards", 2, "previous"], "value": root},
        ],
        "the root of the start again": [{"at": ["shards", 2, "root"], "value": start}],
        "too few steps": [{"at": ["shards", 2, "steps"], "value": 1}],
        "too little noise": [{"at": ["shards", 0, "noise", "sigma"], "value": 9_999}],
        "too much noise": [{"at": ["shards", 0, "noise", "sigma"], "value": 20_001}],
        "all just within the terms": [
            {"at": ["shards", 0, "steps"], "value": 2},
            {"at": ["shards", 0, "noise", "sigma"], "value": 10_000},
            {"at": ["enrolment", "terms", "shards", "most"], "value": 3},
        ],
        "no shard": [{"at": ["shards"], "value": []}],
        "more shards than the terms allow": [
            {"at": ["enrolment", "terms", "shards", "most"], "value": 2}
        ],
        "two faults at once": [
            {"at": ["shards", 0, "steps"], "value": 0},
            {"at": ["shards", 2, "previous"], "value": start},
        ],
    }
    return {
        "manifest": manifest.to_bytes().decode(),
        "message": manifest.message().decode(),
        "nonces": [nonce.to_bytes().decode() for nonce in drawn[:3]],
        "seeds": [_seed(manifest, nonce).hex() for nonce in drawn[:3]],
        "faults": [
            {
                "name": name,
                "changes": changes,
                "faults": [
                    {"check": fault.check, "shard": fault.shard}
                    for fault in chain.faults(
                        Manifest.from_json(apply(document, changes), "vector")
                    )
                ],
            }
            for name, changes in changed.items()
        ],
    }


def _seed(manifest: Manifest, nonce: Nonce) -> bytes:
    walk = chain.ChainWalk(manifest, Ed25519Verifier())
    while walk.shard != nonce.shard:
        walk.skip()
    return walk.open(nonce, place="vector").seed


def apply(document: Json, changes: list[Json]) -> Json:
    """A copy of a document in which the value at each path is another one."""
    copy: Json = json.loads(json.dumps(document))
    for change in changes:
        target = copy
        *way, last = change["at"]
        for step in way:
            target = target[step]
        target[last] = change["value"]
    return copy
