"""What every maker of vectors needs: fixed random-looking bytes, fixed keys, small records."""

import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from polo.keys import Identity
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import (
    EvidenceTerms,
    FinishTerms,
    NoiseTerms,
    SchemeTerms,
    ShardTerms,
    StartTerms,
    TaskTerms,
    Terms,
    Thresholds,
)

Json = dict[str, Any]

ISSUER_SEED = "polo vectors: issuer"
PROVER_SEED = "polo vectors: prover"


def fixed(label: str, size: int) -> bytes:
    """Bytes that look random and never change: SHAKE-256 over a text."""
    return hashlib.shake_256(label.encode()).digest(size)


def key_of(label: str) -> Identity:
    """An identity whose private key is fixed; it must never sign anything real."""
    return Identity(Ed25519PrivateKey.from_private_bytes(fixed(label, 32)))


def small_layout() -> Layout:
    """A layout with one carrier of 64 blocks of 16 weights."""
    tensors = (Tensor("body.weight", "F32", (32, 32)), Tensor("head.bias", "F32", (10,)))
    return Layout(CHUNK_BYTES, tensors, ())


def small_terms() -> Terms:
    """Terms for `small_layout`: marks of 64 bits in 8 blocks of 16 weights."""
    return Terms(
        task=TaskTerms("vectors", 1, "accuracy", (200_000, 400_000)),
        layout=small_layout().digest,
        carrier=("body.weight",),
        scheme=SchemeTerms("ednn", 64, 16, 500_000, "block", 1000, "sum", 1),
        thresholds=Thresholds(990_000, 700_000, -40),
        finish=FinishTerms(100_000, 50_000),
        noise=NoiseTerms(100_000, 10_000, 20_000),
        shards=ShardTerms(1, 5, 2),
        start=StartTerms("free", None),
        evidence=(EvidenceTerms("chain", {}),),
        history="any",
        base=None,
        data=None,
        rewards=(),
        deposit=None,
    )
