"""Canonical JSON: what is read is exactly what would be written."""

import json
from collections.abc import Iterator

from fuzz import mutation, promises, seeds
from fuzz.target import Target
from polo.protocol import canonical


def check(data: bytes) -> None:
    """Refused, or the one spelling of its value."""
    with promises.refusals():
        value = canonical.parse(data, place="input")
        promises.require(canonical.encode(value) == data, "a document has one spelling")
        promises.require(value == json.loads(data), "a document means what JSON says")


def documents() -> Iterator[bytes]:
    """Records of a real proof, and the test vectors as documents of their own."""
    yield b'{"a":[1,-2,true,false,null,"\\u0001\\n\\"\xc3\xa9"],"\xef\xbf\xbf":{}}'
    yield from seeds.documents()
    for path in sorted(seeds.VECTORS.glob("*.json")):
        yield mutation.spell(json.loads(path.read_bytes()))


TARGET = Target(check, documents, mutation.document)
