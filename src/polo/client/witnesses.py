"""Collecting what witnesses said of a proof's entries since its receipts came."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polo.client.log_reader import LogReader
from polo.errors import StoreError
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tree, signing
from polo.protocol.entries import Inclusion, Inclusions
from polo.protocol.log_notes import Note, NoteKey
from polo.storage.folder import ProofFolder, receipts_path
from polo.storage.writer import ProofWriter
from polo.weights.files import open_plain

_MAX_FILE = 256 * 1024


@dataclass(frozen=True)
class Asked:
    """What the terms ask of witnesses.

    Attributes:
        origin: Name of the log.
        log: Its key.
        witnesses: Keys of the witnesses.
        quorum: How many of them must have seen an entry.
    """

    origin: str
    log: NoteKey
    witnesses: Sequence[NoteKey]
    quorum: int

    def seen(self, checkpoint: str, place: str) -> bool:
        """Whether enough witnesses cosigned a checkpoint."""
        note = Note.parse(checkpoint, place=place)
        found = log_notes.cosigned(note, self.witnesses, Ed25519Verifier(), place=place)
        return len(found) >= self.quorum

    def check(self, shown: Inclusion, place: str) -> None:
        """Refuse an inclusion that does not lead to a checkpoint of the log."""
        note = Note.parse(shown.checkpoint, place=place)
        head = log_notes.open_checkpoint(
            note, self.log, Ed25519Verifier(), origin=self.origin, place=place
        )
        if head.size != shown.size:
            raise StoreError(f"a checkpoint of {head.size} entries", place=place)
        log_tree.check_inclusion(
            shown.entry.leaf, shown.index, shown.size, shown.path, head.root, place=place
        )


@dataclass(frozen=True)
class Collected:
    """How many entries got a checkpoint that enough witnesses cosigned, and how many lack one."""

    new: int
    missing: int


def collect(reader: LogReader, proof: Path | str, key: signing.Signer, asked: Asked) -> Collected:
    """Replace checkpoints in a proof by ones that enough witnesses cosigned, and sign it anew.

    Args:
        reader: The registry's log.
        proof: The proof folder.
        key: The prover's key.
        asked: What the terms ask of witnesses.
    """
    folder = ProofFolder(proof)
    manifest = folder.manifest()
    listed = {file.path: file.sha256 for file in manifest.files}
    changed: dict[int, Inclusions] = {}
    new = missing = 0
    for number in range(1, len(manifest.shards) + 1):
        if receipts_path(number) not in listed:
            missing += 1
            continue
        held = _inclusions(folder, number)
        shown = [_seen(reader, item, asked) for item in held.inclusions]
        missing += sum(item is None for _, item in shown)
        found = sum(item is not None and item != old for old, item in shown)
        # What a kill left unsigned is signed now.
        as_signed = hashlib.sha256(held.to_bytes()).digest() == listed[receipts_path(number)]
        if found or not as_signed:
            changed[number] = Inclusions(tuple(item or old for old, item in shown))
            new += found
    if changed:
        writer = ProofWriter(proof, key, manifest.retention)
        try:
            writer.replace_inclusions(changed)
        finally:
            writer.close()
    return Collected(new, missing)


def checkpoints_of(proof: Path | str) -> list[Note]:
    """The checkpoints in a proof, each once, as they stand there; nobody's word is checked."""
    folder = ProofFolder(proof)
    manifest = folder.manifest()
    listed = {file.path for file in manifest.files}
    texts: dict[str, None] = {}
    for number in range(1, len(manifest.shards) + 1):
        if receipts_path(number) in listed:
            shown = _inclusions(folder, number).inclusions
            texts.update((item.checkpoint, None) for item in shown)
    return [Note.parse(text, place=str(proof)) for text in texts]


def _inclusions(folder: ProofFolder, number: int) -> Inclusions:
    place = receipts_path(number)
    with open_plain(folder.file(place)) as file:
        return Inclusions.from_bytes(file.read(_MAX_FILE + 1), place)


def _seen(reader: LogReader, old: Inclusion, asked: Asked) -> tuple[Inclusion, Inclusion | None]:
    """An inclusion, and the same under a checkpoint that was cosigned; None if there is none."""
    if asked.seen(old.checkpoint, "proof"):
        return old, old
    answer = reader.inclusion(old.index, asked.quorum)
    if answer is None:
        return old, None
    size, path, checkpoint = answer
    fresh = replace(old, size=size, path=path, checkpoint=checkpoint)
    asked.check(fresh, reader.url)
    return old, fresh if asked.seen(checkpoint, reader.url) else None
