"""Putting a proof together from what the registry holds of a chain."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, select

from polo.errors import StoreError
from polo.protocol.entries import Entry, live_nonce
from polo.protocol.records import Enrolment, Manifest, Receipt, Retention
from polo.registry.commitments import recorded
from polo.registry.commitments.chains import about_secret
from polo.registry.context import Registry
from polo.registry.objects import key_of
from polo.registry.problems import Problem
from polo.registry.schema import commitments, enrolments, objects

LAYOUT, MANIFEST = "layout.json", "manifest.json"


@dataclass(frozen=True)
class Holdings:
    """What the registry has of a chain.

    Attributes:
        id: The enrolment's digest, in hexadecimal.
        task: Name of the task, as it is offered.
        enrolment: The enrolment.
        layout: The layout's bytes.
        entries: All entries, that of the start first.
        receipts: Their receipts; None where one waits.
        files: Digests of the files that are held.
        manifest: What the prover closed the chain with; None before that.
        secret: κ.
    """

    id: str
    task: str
    enrolment: Enrolment
    layout: bytes
    entries: tuple[Entry, ...]
    receipts: tuple[Receipt | None, ...]
    files: frozenset[str]
    manifest: Manifest | None
    secret: bytes

    @classmethod
    def load(cls, registry: Registry, connection: Connection, enrolment: str) -> "Holdings":
        """Read what there is."""
        row = row_of(connection, enrolment)
        rows = connection.execute(
            select(commitments.c.record, commitments.c.receipt)
            .where(commitments.c.enrolment == enrolment)
            .order_by(commitments.c.shard)
        ).all()
        held = select(objects.c.sha256).where(objects.c.enrolment == enrolment)
        return cls(
            id=enrolment,
            task=row.task,
            enrolment=Enrolment.from_bytes(bytes(row.record), "enrolment"),
            layout=bytes(row.layout),
            entries=tuple(Entry.from_bytes(bytes(each.record), "entry") for each in rows),
            receipts=tuple(
                Receipt.from_bytes(bytes(each.receipt), "receipt") if each.receipt else None
                for each in rows
            ),
            files=frozenset(connection.execute(held).scalars()),
            manifest=Manifest.from_bytes(bytes(row.manifest), MANIFEST) if row.manifest else None,
            secret=registry.vault.open(bytes(row.secret), about_secret(enrolment)),
        )

    @property
    def weights(self) -> int:
        """Bytes of a checkpoint."""
        from polo.protocol.layout import Layout

        return Layout.from_bytes(self.layout, LAYOUT).size

    def so_far(self) -> Manifest:
        """A manifest of what was committed to so far; nobody signed it, so it is for our eyes."""
        start, *rest = self.entries
        assert start.start is not None
        answered = iter(self.receipts)
        return Manifest(
            enrolment=self.enrolment,
            start=replace(start.start, receipt=next(answered)),
            shards=tuple(
                replace(entry.shard, receipt=next(answered)) for entry in rest if entry.shard
            ),
            retention=Retention("thin", 1, False),
            files=(),
            finished=False,
            outside=0,
            transfer=None,
        )

    def missing(self) -> list[str]:
        """Files that the manifest lists and that the registry neither holds nor can make."""
        assert self.manifest is not None
        return [
            file.path
            for file in self.manifest.files
            if file.path != LAYOUT
            and not file.path.startswith("nonces/")
            and file.sha256.hex() not in self.files
        ]

    def write(self, registry: Registry, into: Path, *, only: str = "") -> None:
        """Write the proof into a folder.

        Args:
            registry: The registry, whose objects are fetched.
            into: The folder to make.
            only: Only files whose path begins so, beside manifest and layout.
        """
        assert self.manifest is not None
        into.mkdir(mode=0o700)
        (into / MANIFEST).write_bytes(self.manifest.to_bytes())
        for file in self.manifest.files:
            path = into / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.path == LAYOUT:
                path.write_bytes(self.layout)
            elif not file.path.startswith(only):
                continue
            elif file.path.startswith("nonces/"):
                number = int(path.stem)
                if number <= len(self.entries):
                    nonce = live_nonce(self.secret, self.entries[number - 1])
                    path.write_bytes(nonce.to_bytes())
            elif file.sha256.hex() in self.files:
                registry.objects.fetch(key_of(file.sha256), path)

    def write_so_far(self, registry: Registry, into: Path) -> None:
        """Write what steps of the newest shard are run again from: records, nonces, layout.

        Args:
            registry: The registry, whose objects are fetched.
            into: The folder to make.
        """
        from polo.storage.folder import evidence_path, nonce_path

        manifest, chain = self.so_far(), registry.sequencer.chains.get(self.id)
        assert chain is not None
        with registry.database.read() as connection:
            held = [recorded.held(connection, chain, shard) for shard in manifest.shards]
        for name in ("", "nonces", "evidence/replay"):
            (into / name).mkdir(parents=True, mode=0o700)
        (into / MANIFEST).write_bytes(manifest.to_bytes())
        (into / LAYOUT).write_bytes(self.layout)
        for entry, shard, files in zip(self.entries, manifest.shards, held, strict=False):
            nonce = live_nonce(self.secret, entry)
            (into / nonce_path(shard.shard)).write_bytes(nonce.to_bytes())
            path = into / evidence_path("replay", shard.shard)
            # It was here when the shard was committed to.
            if not recorded.fetch(registry.objects, files, shard, path):
                raise StoreError("a record is not here any more", place=f"shard {shard.shard}")


def row_of(connection: Connection, enrolment: str) -> Row[Any]:
    """The row of an enrolment."""
    row = connection.execute(select(enrolments).where(enrolments.c.id == enrolment)).first()
    if row is None:
        raise Problem(404, "enrolment.missing", "there is no such enrolment")
    return row
