"""Collecting what witnesses said of a proof's entries since its receipts came."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from polo.client.checking import LEVEL, log_of
from polo.client.http import Patience
from polo.client.log_reader import LogReader
from polo.errors import StoreError, TermsError
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tree, signing
from polo.protocol.entries import Inclusion, Inclusions
from polo.protocol.log_notes import Note, NoteKey
from polo.protocol.records import Enrolment
from polo.storage.folder import ProofFolder, receipts_path
from polo.storage.writer import ProofWriter
from polo.weights.files import open_plain

LOOK = Patience(first=0.5, most=10.0)
"""How long to wait between looks for cosignatures."""

_MAX_FILE = 256 * 1024
_MOST_WITNESSES = 16


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

    @classmethod
    def of(cls, enrolment: Enrolment) -> Self | None:
        """What an enrolment's terms ask of witnesses; None where they name none."""
        evidence = enrolment.terms.evidence
        settings = next((item.settings for item in evidence if item.level == LEVEL), {})
        if "witnesses" not in settings:
            return None
        origin, log = log_of(enrolment)
        place = f"terms: {LEVEL}.witnesses"
        keys = [NoteKey.parse(part, place=place) for part in settings["witnesses"].split(",")]
        quorum = settings.get("quorum", str(len(keys)))
        if not quorum.isdecimal() or not 1 <= int(quorum) <= len(keys):
            raise TermsError(f"a quorum of {quorum[:20]} of {len(keys)} witnesses", place=place)
        return cls(origin, log, keys, int(quorum))

    @property
    def words(self) -> str:
        """How many of them, for people."""
        return f"{self.quorum} of {len(self.witnesses)} witnesses"

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


def awaited(
    reader: LogReader, proof: Path | str, asked: Asked, *, seconds: float, tell: Callable[[], None]
) -> bool:
    """Wait until witnesses cosigned a checkpoint over the newest entry, and so over all of them.

    Args:
        reader: The registry's log.
        proof: The proof folder.
        asked: What the terms ask of witnesses.
        seconds: Most seconds to wait.
        tell: Called before each wait.

    Returns:
        Whether they have.
    """
    folder = ProofFolder(proof)
    manifest = folder.manifest()
    last = len(manifest.shards)
    if all(file.path != receipts_path(last) for file in manifest.files):
        return False
    newest = _inclusions(folder, last).inclusions[-1]
    until = time.monotonic() + seconds
    for pause in LOOK.waits():
        if _seen(reader, newest, asked)[1]:
            return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        tell()
        time.sleep(min(pause, left))
    raise AssertionError


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
    # The registry may know more witnesses than the terms name. The first checkpoint with enough
    # cosignatures need not have those that count here; one with more of them may.
    for quorum in range(asked.quorum, _MOST_WITNESSES + 1):
        answer = reader.inclusion(old.index, quorum)
        if answer is None:
            return old, None
        size, path, checkpoint = answer
        fresh = replace(old, size=size, path=path, checkpoint=checkpoint)
        asked.check(fresh, reader.url)
        if asked.seen(checkpoint, reader.url):
            return old, fresh
    return old, None
