"""Vectors of level uniqueness: a closed chain, and statements about its last weights."""

from dataclasses import replace

from vectors.kit import ISSUER_SEED, PROVER_SEED, Json, fixed, key_of, small_terms

from polo.protocol import entries, signing
from polo.protocol.records import (
    Enrolment,
    EvidenceTerms,
    FinishRecord,
    Manifest,
    NoiseRecord,
    NonceTerms,
    Receipt,
    Retention,
    Shard,
    Start,
)
from polo.protocol.uniqueness import Resemblance, Uniqueness

ORIGIN = "registry.example/log"
TIME = 1_700_000_000
INDEX = 280
"""Place of the last shard in the log."""


def _enrolment() -> Enrolment:
    terms = small_terms()
    terms = replace(terms, evidence=(*terms.evidence, EvidenceTerms("uniqueness", {})))
    secret = fixed("polo vectors: secret of a unique chain", 32)
    live = NonceTerms("live", entries.secret_commitment(secret), 0)
    prover, issuer = key_of(PROVER_SEED), key_of(ISSUER_SEED)
    bare = Enrolment(terms, prover.public_key, live, TIME, issuer.public_key)
    return signing.sign(bare, issuer)


def _root(number: int) -> bytes:
    return fixed(f"polo vectors: unique root {number}", 32)


def _receipt(number: int, index: int) -> Receipt:
    bare = Receipt(
        enrolment=_enrolment().digest,
        shard=number,
        root=_root(number),
        time=TIME + number,
        origin=ORIGIN,
        index=index,
        next_nonce=fixed(f"polo vectors: unique nonce {number + 1}", 32),
    )
    return signing.sign(bare, key_of(ISSUER_SEED))


def _manifest() -> Manifest:
    shard = Shard(
        shard=1,
        previous=_root(0),
        root=_root(1),
        epochs=1,
        steps=20,
        matches=64,
        metrics={"accuracy": 250_000},
        finish=FinishRecord(0, 0),
        noise=NoiseRecord(20_000, fixed("polo vectors: unique secret 2", 32)),
        evidence={},
        sealed=TIME,
        receipt=_receipt(1, INDEX),
    )
    bare = Manifest(
        enrolment=_enrolment(),
        start=Start(_root(0), fixed("polo vectors: unique secret 1", 32), _receipt(0, INDEX - 1)),
        shards=(shard,),
        retention=Retention("all", 1, False),
        files=(),
        finished=True,
        outside=0,
        transfer=None,
    )
    return signing.sign(bare, key_of(PROVER_SEED))


def _claim(name: str, *, earlier: bool, relation: str) -> Resemblance:
    return Resemblance(fixed(f"polo vectors: {name}", 32), earlier, relation, 340)


def _statement(**changes: object) -> Uniqueness:
    usual = {
        "enrolment": _enrolment().digest,
        "root": _root(1),
        "origin": ORIGIN,
        "size": INDEX + 1,
        "chains": 9_999,
        "unread": 12,
        "time": TIME + 60,
        "claims": (),
    }
    return Uniqueness(**{**usual, **changes})  # type: ignore[arg-type]


def _cases() -> list[tuple[str, Uniqueness, str]]:
    """A name for each case, the statement without a signature, and how the check ends."""
    lineage = (
        _claim("an own chain", earlier=True, relation="own"),
        _claim("a parent", earlier=True, relation="parent"),
    )
    later = _claim("a later chain", earlier=False, relation="none")
    earlier = _claim("an earlier chain", earlier=True, relation="none")
    return [
        ("nobody's", _statement(), "passed"),
        ("its own lineage's", _statement(claims=lineage), "passed"),
        ("a later chain's, too", _statement(claims=(later,)), "passed"),
        ("an earlier chain's", _statement(claims=(earlier,)), "failed"),
        (
            "an earlier chain's among others",
            _statement(claims=(*lineage, later, earlier)),
            "failed",
        ),
        ("looked at in time", _statement(size=2**40), "passed"),
        ("looked at too early", _statement(size=INDEX), "failed"),
        ("of another enrolment", _statement(enrolment=bytes(32)), "failed"),
        ("of other weights", _statement(root=_root(0)), "failed"),
    ]


def uniqueness_json() -> Json:
    """A chain, and statements about it with how the check of the level ends."""
    issuer, stranger = key_of(ISSUER_SEED), key_of(PROVER_SEED)
    cases = [
        {"name": name, "statement": signing.sign(item, issuer).to_bytes().decode(), "ends": ends}
        for name, item, ends in _cases()
    ]
    forged = signing.sign(_statement(), stranger)
    changed = replace(signing.sign(_statement(chains=1), issuer), chains=2)
    for name, item in (("signed by the prover", forged), ("changed after it was signed", changed)):
        cases.append({"name": name, "statement": item.to_bytes().decode(), "ends": "failed"})
    return {
        "manifest": _manifest().to_bytes().decode(),
        "message": _statement().message().decode(),
        "statements": cases,
        "unread": [
            {"name": name, "statement": text}
            for name, text in _unreadable(signing.sign(_statement(), issuer))
        ],
    }


def _unreadable(whole: Uniqueness) -> list[tuple[str, str]]:
    """Statements that are no statement; each differs in one place from a good one."""
    text = whole.to_bytes().decode()
    claimed = replace(whole, claims=(_claim("x", earlier=True, relation="own"),))
    return [
        ("another format", text.replace("polo/uniqueness/1", "polo/uniqueness/2")),
        ("a field more", text.replace('"chains":', '"chain":0,"chains":')),
        ("a count below zero", text.replace('"unread":12', '"unread":-1')),
        ("another relation", claimed.to_bytes().decode().replace('"own"', '"friend"')),
    ]
