"""Multiproofs: no leaf but the true one leads to the root."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from fuzz import mutation, promises
from fuzz.target import Target
from polo.protocol import merkle

_MOST = 64
"""Leaves of the largest tree whose truth is known here."""


def _leaf(at: int) -> bytes:
    return hashlib.sha256(bytes([at])).digest()


def check(data: bytes) -> None:
    """Refused, or a root; and the true root only from true leaves."""
    try:
        value = json.loads(data)
        count, proof = int(value["count"]), [_bytes(item) for item in value["proof"]]
        wanted = {int(at): _bytes(item) for at, item in value["wanted"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return
    if count.bit_length() > 64:
        return
    with promises.refusals():
        found = merkle.root_from_multiproof(count, wanted, proof, place="input")
        promises.require(
            len(proof) == merkle.multiproof_length(count, sorted(wanted)), "a path has one length"
        )
        if 0 < count <= _MOST and found == merkle.root([_leaf(at) for at in range(count)]):
            truth = {at: _leaf(at) for at in wanted}
            promises.require(wanted == truth, "only true leaves lead to the root")


def _bytes(text: Any) -> bytes:
    return bytes.fromhex(text)


def proofs() -> Iterator[bytes]:
    """Real multiproofs of trees of many sizes."""
    for count, wanted in ((1, [0]), (2, [1]), (3, [0, 2]), (7, [2, 3, 6]), (33, [0, 16, 32])):
        leaves = [_leaf(at) for at in range(count)]
        proof = merkle.multiproof(leaves, wanted)
        yield mutation.spell(
            {
                "count": count,
                "wanted": {str(at): leaves[at].hex() for at in wanted},
                "proof": [item.hex() for item in proof],
            }
        )


TARGET = Target(check, proofs, mutation.document)
