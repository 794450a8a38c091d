"""Valid inputs, made by the real code from the golden proofs."""

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polo.protocol import canonical, fields, records
from polo.protocol.layout import Layout

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
GOLDEN = VECTORS / "golden" / "v1"


def manifest() -> records.Manifest:
    """The manifest of a golden proof."""
    return records.Manifest.from_bytes((GOLDEN / "manifest.json").read_bytes(), "manifest.json")


def layout() -> Layout:
    """The layout of a golden proof."""
    return Layout.from_bytes((GOLDEN / "layout.json").read_bytes(), "layout.json")


def nonce(shard: int) -> records.Nonce:
    """A nonce of a golden proof."""
    place = GOLDEN / f"nonces/{shard:06d}.json"
    return records.Nonce.from_bytes(place.read_bytes(), str(place))


def kinds() -> list[type[fields.Record]]:
    """Every kind of record that stands alone as a document."""
    homes = ("storage.disclosures", "protocol.effort", "protocol.challenge", "protocol.entries")
    for home in homes:
        importlib.import_module(f"polo.{home}")  # They have some of their own.
    found: list[type[fields.Record]] = []
    waiting: list[type[fields.Record]] = [fields.Record]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting += subclasses
        found += [kind for kind in subclasses if kind.FORMAT]
    return sorted(found, key=lambda kind: kind.FORMAT)


def documents() -> Iterator[bytes]:
    """A document of every kind: of the golden proof, or with the least that its fields take."""
    whole = manifest()
    golden: list[fields.Record] = [whole, whole.enrolment, whole.terms, layout(), nonce(1)]
    for record in golden:
        yield record.to_bytes()
    for kind in kinds():
        if not any(isinstance(record, kind) for record in golden):
            yield canonical.encode(_least(fields.Nested(kind)))


def _least(field: Any) -> Any:
    """The plainest JSON value that a field takes."""
    match field:
        case fields.Nested(record=kind):
            members = {at.name: _least(at.metadata["polo"]) for at in dataclasses.fields(kind)}  # type: ignore[arg-type]
            return {**members, **({"format": kind.FORMAT} if kind.FORMAT else {})}
        case fields.Nullable(item=item):
            return _least(item)
        case fields.ListOf(item=item):
            return [_least(item)]
        case fields.MapOf(item=item):
            return {"a": _least(item)}
        case fields.Integer(least=least):
            return least
        case fields.Boolean():
            return False
        case fields.Bytes(size=size):
            return "00" * size
        case fields.Choice(words=words):
            return words[0]
    return "a"
