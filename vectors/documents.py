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
_EDWARDS_PRIME = 2**255 - 19
_ORDER_EIGHT = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826

_WEAK = {
    "order 1": 1,
    "order 2": _EDWARDS_PRIME - 1,
    "order 4": 0,
    "order 8": _ORDER_EIGHT,
    "order 8, the other": _EDWARDS_PRIME - _ORDER_EIGHT,
    "order 4, not canonical": _EDWARDS_PRIME,
    "order 1, not canonical": _EDWARDS_PRIME + 1,
    "the largest, not canonical": 2**255 - 1,
}
"""Lower 255 bits of public keys to refuse, with either top bit."""

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
        "weak_keys": [
            {"name": name, "public_key": (y + (top << 255)).to_bytes(32, "little").hex()}
            for name, y in _WEAK.items()
            for top in (0, 1)
        ],
        # Under the key of order 1 this holds for every message: R is that point too, and S is 0.
        "weak_signature": (b"\x01" + bytes(63)).hex(),
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
    receipt = _receipt(enrolment, nonce)
    issuer, stranger = key_of(ISSUER_SEED), key_of(PROVER_SEED)
    refused = {
        "of another shard": signing.sign(replace(receipt, shard=2), issuer),
        "of another enrolment": signing.sign(replace(receipt, enrolment=bytes(32)), issuer),
        "for other weights": signing.sign(replace(receipt, root=bytes(32)), issuer),
        "with another nonce": signing.sign(replace(receipt, next_nonce=bytes(32)), issuer),
        "signed by another key": signing.sign(receipt, stranger),
        "changed after signing": replace(receipt, time=receipt.time + 1),
    }
    return {
        "enrolment": enrolment.to_bytes().decode(),
        "previous": receipt.root.hex(),
        "nonce": nonce.to_bytes().decode(),
        "receipt": receipt.to_bytes().decode(),
        "message": receipt.message().decode(),
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
    """A manifest of three shards, the seeds of its marks, and changes with what comes of them."""
    commitment, drawn = _drawn("polo vectors: chain nonces", 5)
    manifest = _manifest(commitment)
    document = manifest.to_json()
    root = document["shards"][0]["root"]
    start = document["start"]["root"]
    receipt = _receipt(manifest.enrolment, drawn[2]).to_json()
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
            *_most(3),
        ],
        "no shard": [{"at": ["shards"], "value": []}],
        "more shards than the terms allow": _most(2),
        "fewer matches than it takes to seal": [{"at": ["shards", 1, "matches"], "value": 63}],
        "more matches than there are bits": [{"at": ["shards", 1, "matches"], "value": 65}],
        "61 matches of 64 at a rate of 0.95, and 60": [
            {"at": ["enrolment", "terms", "thresholds", "embed"], "value": 950_000},
            {"at": ["shards", 0, "matches"], "value": 61},
            {"at": ["shards", 1, "matches"], "value": 60},
        ],
        "a receipt with offline nonces": [{"at": ["shards", 1, "receipt"], "value": receipt}],
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
        "listings": _listings(document),
        "refused": [
            {
                "name": "fewer nonces than shards allowed",
                "changes": [{"at": ["enrolment", "nonces", "count"], "value": 4}],
            },
            {
                "name": "more nonces than shards allowed",
                "changes": [{"at": ["enrolment", "terms", "shards", "most"], "value": 4}],
            },
            {
                "name": "live nonces with a count",
                "changes": [{"at": ["enrolment", "nonces", "kind"], "value": "live"}],
            },
            {
                "name": "terms that refuse themselves",
                "changes": [{"at": ["enrolment", "terms", "noise", "fraction"], "value": 3_906}],
            },
        ],
    }


def _most(shards: int) -> list[Json]:
    """Changes that allow so many shards, and commit to as many nonces."""
    return [
        {"at": ["enrolment", "terms", "shards", "most"], "value": shards},
        {"at": ["enrolment", "nonces", "count"], "value": shards},
    ]


def _receipt(enrolment: Enrolment, nonce: Nonce) -> Receipt:
    receipt = Receipt(
        enrolment=enrolment.digest,
        shard=nonce.shard - 1,
        root=fixed(f"polo vectors: root {nonce.shard - 1}", 32),
        time=1_700_000_100,
        origin="log.example",
        index=41,
        next_nonce=nonces.leaf(nonce),
    )
    return signing.sign(receipt, key_of(ISSUER_SEED))


_LISTINGS: dict[str, tuple[list[str], bool]] = {
    "no more than the layout": (["layout.json"], True),
    "all that three shards can have": (
        [
            "checkpoints/000000.delta.safetensors", "checkpoints/000002.delta.safetensors",
            "checkpoints/000003.safetensors", "evidence/replay/000001.json",
            "evidence/replay/000003.safetensors", "layout.json", "nonces/000001.json",
            "nonces/000003.json", "openings/000001.safetensors", "openings/000003.safetensors",
        ],
        True,
    ),
    "nothing": ([], False),
    "no layout": (["nonces/000001.json"], False),
    "out of order": (["nonces/000001.json", "layout.json"], False),
    "a path twice": (["layout.json", "layout.json"], False),
    "a checkpoint of shard 4": (["checkpoints/000004.safetensors", "layout.json"], False),
    "a delta of shard 4": (["checkpoints/000004.delta.safetensors", "layout.json"], False),
    "a nonce of shard 0": (["layout.json", "nonces/000000.json"], False),
    "a nonce of shard 4": (["layout.json", "nonces/000004.json"], False),
    "an opening of shard 0": (["layout.json", "openings/000000.safetensors"], False),
    "an opening of shard 4": (["layout.json", "openings/000004.safetensors"], False),
    "evidence of shard 0": (["evidence/replay/000000.json", "layout.json"], False),
    "evidence of shard 4": (["evidence/replay/000004.json", "layout.json"], False),
    "evidence of a level not asked for": (["evidence/progress/000001.json", "layout.json"], False),
    "evidence of no level": (["evidence/faith/000001.json", "layout.json"], False),
    "a delta beside the whole": (
        ["checkpoints/000003.delta.safetensors", "checkpoints/000003.safetensors", "layout.json"],
        False,
    ),
}  # fmt: skip
"""Paths that a manifest of three shards lists, and whether it may; the terms ask for replay."""


def _listings(document: Json) -> list[Json]:
    levels: list[Json] = [{"level": level, "settings": {}} for level in ("chain", "replay")]
    found = []
    for name, (paths, holds) in _LISTINGS.items():
        files = [{"path": path, "size": 0, "sha256": "00" * 32} for path in paths]
        changes = [
            {"at": ["enrolment", "terms", "evidence"], "value": levels},
            {"at": ["enrolment", "terms", "data"], "value": "00" * 32},
            {"at": ["files"], "value": files},
        ]
        manifest = Manifest.from_json(apply(document, changes), "vector")
        if holds is any(chain.misplaced(manifest)):
            raise ValueError(f"the library finds otherwise: {name}")
        found.append({"name": name, "changes": changes, "holds": holds})
    return found


_FITTING: dict[str, Json] = {
    "nothing changed": {},
    "64 bits at 2^-64": {"thresholds.embed": 1_000_000, "thresholds.log2_p": -64},
    "62 of 64 bits, just rare enough": {"thresholds.embed": 968_750, "thresholds.log2_p": -52},
    "a rate that is met exactly": {"thresholds.embed": 984_375, "thresholds.verify": 984_375},
    "the least noise there is": {"noise.fraction": 3_907},
    "no noise": {"noise.fraction": 0, "noise.least": 0, "noise.most": 0},
    "1024 blocks under a dense key": {"scheme.key": "dense", "scheme.bits": 8192},
    "a parent": {"start.kind": "parent", "start.parent": "00" * 32},
    "a level with settings": {
        "evidence": [
            {"level": "chain", "settings": {}},
            {"level": "replay", "settings": {"segments": "4"}},
        ],
        "data": "00" * 32,
    },
}

_CONTRADICTING: dict[str, tuple[int, Json]] = {
    "a block of 24 weights": (1, {"scheme.block": 24, "scheme.bits": 60}),
    "a block without a bit": (2, {"scheme.load": 1}),
    "60 bits in blocks of 8": (2, {"scheme.bits": 60}),
    "1025 blocks under a dense key": (3, {"scheme.key": "dense", "scheme.bits": 8200}),
    "less noise at most than at least": (4, {"noise.least": 20_001}),
    "no level": (5, {"evidence": []}),
    "a level twice": (5, {"evidence": [{"level": "chain", "settings": {}}] * 2}),
    "no chain": (5, {"evidence": [{"level": "replay", "settings": {}}], "data": "00" * 32}),
    "a parent without a root": (6, {"start.kind": "parent"}),
    "a root without a parent": (6, {"start.parent": "00" * 32}),
    "a chance that no reading has": (7, {"thresholds.log2_p": -65}),
    "63 of 64 bits, not rare enough": (
        7,
        {"thresholds.embed": 984_375, "thresholds.log2_p": -58},
    ),
    "sealed below what is verified": (
        7,
        {"thresholds.embed": 900_000, "thresholds.verify": 910_000, "thresholds.log2_p": -10},
    ),
    "noise on no weight": (8, {"noise.fraction": 3_906}),
    "fewer shards at most than at least": (9, {"shards.least": 6}),
    "settings of the chain": (9, {"evidence": [{"level": "chain", "settings": {"a": ""}}]}),
    "replay without data": (
        13,
        {"evidence": [{"level": level, "settings": {}} for level in ("chain", "replay")]},
    ),
    "data without replay": (13, {"data": "00" * 32}),
}
"""Changed fields, and the rule of section 3.3 that they break."""


def terms_json() -> Json:
    """Terms, changes that they bear, and changes that make them contradict themselves."""
    return {
        "terms": small_terms().to_bytes().decode(),
        "valid": [{"name": name, "changes": _changes(fields)} for name, fields in _FITTING.items()],
        "refused": [
            {"name": name, "rule": rule, "changes": _changes(fields)}
            for name, (rule, fields) in _CONTRADICTING.items()
        ],
    }


def _changes(fields: Json) -> list[Json]:
    return [{"at": path.split("."), "value": value} for path, value in fields.items()]


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
