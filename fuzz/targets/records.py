"""Every kind of document: refused, or written back byte for byte."""

from fuzz import mutation, promises, seeds
from fuzz.target import Target
from polo.protocol import chain
from polo.protocol.records import Manifest, SignedRecord


def check(data: bytes) -> None:
    """Read it as each kind of record whose format word it holds, or as all of them."""
    kinds = seeds.kinds()
    named = [kind for kind in kinds if f'"{kind.FORMAT}"'.encode() in data]
    for kind in named or kinds:
        with promises.refusals():
            record = kind.from_bytes(data, "input")
            promises.require(record.to_bytes() == data, "a record has one spelling")
            if isinstance(record, SignedRecord):
                record.message()
            if isinstance(record, Manifest):
                # Both look at a manifest before its signature has been checked.
                list(chain.faults(record))
                list(chain.misplaced(record))


TARGET = Target(check, seeds.documents, mutation.document)
