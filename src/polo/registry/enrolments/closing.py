"""Whether a manifest says what the log says."""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import Connection, func, select

from polo.errors import PoloError
from polo.keys import Ed25519Verifier
from polo.protocol import chain, signing
from polo.protocol.entries import Entry
from polo.protocol.records import Enrolment, Manifest, Receipt, Shard, Start
from polo.registry.problems import Problem
from polo.registry.schema import commitments

_COUNT = select(func.count()).select_from(commitments)
_ROWS = select(commitments.c.record, commitments.c.receipt).order_by(commitments.c.shard)


def read(enrolment: Enrolment, data: bytes) -> Manifest:
    """The manifest in a body, signed and for this enrolment; else a `Problem`.

    A large one takes seconds to read: to be done before any lock is taken.
    """
    try:
        manifest = Manifest.from_bytes(data, "manifest")
        signing.check(manifest, enrolment.identity, Ed25519Verifier(), place="manifest")
    except PoloError as error:
        raise _wrong(str(error)) from error
    if manifest.enrolment != enrolment:
        raise _wrong("it is for another enrolment")
    if not manifest.finished:
        raise _wrong("the prover has not finished the proof")
    return manifest


def check(connection: Connection, id_: str, manifest: Manifest) -> None:
    """Refuse a manifest that is not the whole chain, and only that."""
    count = connection.execute(_COUNT.where(commitments.c.enrolment == id_)).scalar_one()
    if len(manifest.shards) + 1 != count:
        raise _wrong(
            f"it has {len(manifest.shards)} shards, and {max(0, count - 1)} were committed to"
        )
    least = manifest.terms.shards.least
    if len(manifest.shards) < least:
        raise Problem(
            422,
            "enrolment.manifest",
            f"{len(manifest.shards)} shards; the terms ask for {least} at least",
            advice="Train on: start again on the same store, with more epochs. The chain is open.",
        )
    rows = connection.execute(_ROWS.where(commitments.c.enrolment == id_))
    committed = [
        (Entry.from_bytes(bytes(row.record), "entry"), row.receipt and bytes(row.receipt))
        for row in rows
    ]
    if fault := next(_faults(manifest, committed), None):
        raise _wrong(fault)


def _faults(manifest: Manifest, committed: list[tuple[Entry, bytes | None]]) -> Iterator[str]:
    from polo.storage.folder import opening_path  # numpy, without which the server starts

    listed: list[Start | Shard] = [manifest.start, *manifest.shards]
    files = {file.path: file.sha256 for file in manifest.files}
    for said, (entry, receipt) in zip(listed, committed, strict=True):
        name = f"shard {entry.number}" if entry.number else "the start"
        if replace(said, receipt=None) != (entry.shard or entry.start):
            yield f"{name} is not what was committed to"
        if receipt is None:
            yield f"{name} has no receipt yet: a challenge is open"
        elif said.receipt != Receipt.from_bytes(receipt, "receipt"):
            yield f"{name} has another receipt than the one that was given"
        path = opening_path(entry.number)
        if entry.opening and files.get(path, entry.opening) != entry.opening:
            yield f"{path} is not the opening that was committed to"
    yield from (fault.detail for fault in chain.faults(manifest))


def _wrong(detail: str) -> Problem:
    return Problem(
        422,
        "enrolment.manifest",
        detail,
        advice="Send manifest.json as `finish()` wrote it, with every receipt in its place.",
    )
