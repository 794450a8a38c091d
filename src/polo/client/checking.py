"""What a registry answers, held against what it promised: the trainer's side of its honesty.

A receipt must be signed by the enrolment's issuer and be about the very entry that was sent; the
nonce must be the one in it; the entry must be in the log that the terms name; and that log may
only ever grow. The newest checkpoint that was seen is remembered beside the enrolment, so a log
that was forked between two runs is found out as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from polo.errors import DistrustError, FormatError, RegistryError, SignatureError, TermsError
from polo.keys import Ed25519Verifier
from polo.protocol import log_tree, nonces, signing
from polo.protocol.entries import Entry, Inclusion, live_nonce, secret_commitment
from polo.protocol.log_notes import Checkpoint, Note, NoteKey, open_checkpoint
from polo.protocol.records import Enrolment, Manifest, Nonce, Receipt
from polo.receipts import Answer
from polo.storage import atomic
from polo.storage.folder import ProofFolder, opening_path
from polo.weights.files import open_plain

LEVEL = "receipts"
MEMORY_FILE = "log-checkpoint.txt"
_MAX_MEMORY = 64 * 1024

Consistency = Callable[[int, int], list[bytes]]
"""Asks the registry to show that one size of its log goes on from another."""


def log_of(enrolment: Enrolment) -> tuple[str, NoteKey]:
    """Name and key of the log that receipts under an enrolment are in."""
    for item in enrolment.terms.evidence:
        if item.level == LEVEL and {"origin", "log"} <= item.settings.keys():
            key = NoteKey.parse(item.settings["log"], place="terms: receipts.log")
            return item.settings["origin"], key
    raise TermsError(
        "the enrolment is live, but its terms name no log to find its receipts in",
        place="terms: receipts",
        advice="Enrol again, at a registry whose terms have level receipts.",
    )


class LogMemory:
    """The newest checkpoint of a log that was seen, and that all later ones go on from it.

    Args:
        origin: The log's name.
        key: Its key.
        path: Where the checkpoint is remembered; None to remember it in memory alone.

    Attributes:
        newest: The newest checkpoint.
    """

    def __init__(self, origin: str, key: NoteKey, path: Path | None = None) -> None:
        self.origin = origin
        self._key = key
        self._path = path
        self.newest: Checkpoint | None = None
        if path and path.exists():
            with open_plain(path) as file:
                data = file.read(_MAX_MEMORY)
            self.newest = self.opened(_text(data, str(path)), place=str(path))

    def opened(self, note: str, *, place: str) -> Checkpoint:
        """The checkpoint in a note that the log signed."""
        parsed = Note.parse(note, place=place)
        return open_checkpoint(
            parsed, self._key, Ed25519Verifier(), origin=self.origin, place=place
        )

    def seen(self, note: str, consistency: Consistency, *, place: str) -> Checkpoint:
        """Take a checkpoint in, unless it belongs to another history than the newest one."""
        found = self.opened(note, place=place)
        newest = self.newest
        if newest is not None:
            old, new = sorted((newest, found), key=lambda head: head.size)
            proof = self._proof(old.size, new.size, consistency, place)
            log_tree.check_consistency(
                old.size, old.root, new.size, new.root, proof, place=f"{place}: the log was forked"
            )
        if newest is None or found.size > newest.size:
            if self._path:
                atomic.write(self._path, note.encode())
            self.newest = found
        return found

    def _proof(self, old: int, new: int, consistency: Consistency, place: str) -> list[bytes]:
        if not 0 < old < new:
            return []
        try:
            return consistency(old, new)
        except RegistryError as error:
            if error.status != 404:
                raise
            # It signed both sizes, so it cannot be that it has not so many entries.
            raise FormatError(
                f"the log had {new} entries, and has lost some", place=place
            ) from error


def checked_answer(
    said: Mapping[str, Any],
    entry: Entry,
    enrolment: Enrolment,
    memory: LogMemory,
    consistency: Consistency,
    *,
    place: str,
) -> Answer:
    """The registry's answer to an entry, refused unless all of it holds.

    Args:
        said: The answer: `receipt`, `nonce` and `inclusion`.
        entry: What was committed.
        enrolment: What it was committed under.
        memory: What was seen of the log before.
        consistency: Asks for proofs of consistency.
        place: The registry's address, for errors.
    """
    with Lies(place, "registry.wrong-receipt", "its receipt"):
        receipt = Receipt.from_json(said.get("receipt"), "receipt")
        _check_receipt(receipt, entry, enrolment, origin=memory.origin)
    with Lies(place, "registry.wrong-nonce", "its nonce"):
        nonce = Nonce.from_json(said.get("nonce"), "nonce")
        if nonce.shard != entry.number + 1 or nonce.path:
            raise FormatError(f"a nonce of shard {nonce.shard}", place="nonce")
        if nonces.leaf(nonce) != receipt.next_nonce:
            raise FormatError("is not the one that the receipt promises", place="nonce")
    with Lies(place, "registry.wrong-inclusion", "its log"):
        inclusion = Inclusion.from_json(said.get("inclusion"), "inclusion")
        _check_inclusion(inclusion, receipt, entry)
        head = memory.opened(inclusion.checkpoint, place="checkpoint")
        if head.size != inclusion.size:
            raise FormatError("the checkpoint is of another size", place="inclusion")
        log_tree.check_inclusion(
            entry.leaf, inclusion.index, head.size, inclusion.path, head.root, place="inclusion"
        )
    with Lies(place, "registry.forked-log", "its log"):
        memory.seen(inclusion.checkpoint, consistency, place="checkpoint")
    return Answer(receipt, nonce, inclusion)


def check_secret(
    secret: bytes, manifest: Manifest, proof: Path, signer: signing.Signer, *, place: str
) -> None:
    """Refuse a registry whose nonces do not come from the secret that it had committed to.

    Args:
        secret: κ, which it shows after the close.
        manifest: The closed chain.
        proof: Its folder, with the nonces that were given.
        signer: The prover's key.
        place: The registry's address, for errors.
    """
    with Lies(place, "registry.wrong-secret", "its secret"):
        if secret_commitment(secret) != manifest.enrolment.nonces.root:
            raise FormatError("is not the one that the enrolment commits to", place="κ")
    folder = ProofFolder(proof)
    with Lies(place, "registry.chosen-nonce", "a nonce"):
        for number in range(1, len(manifest.shards) + 1):
            given = folder.nonce(number)
            if given != live_nonce(secret, entry_of(manifest, number - 1, signer)):
                raise FormatError(
                    "does not come from the registry's secret: it was chosen",
                    place=f"nonce of shard {number}",
                )


def entry_of(manifest: Manifest, number: int, signer: signing.Signer) -> Entry:
    """What stands in the log for a shard of a manifest, or for the start (0).

    Signing it again gives the same bytes, so nothing of it need be kept.
    """
    digest = manifest.enrolment.digest
    if number == 0:
        start = replace(manifest.start, receipt=None)
        return signing.sign(Entry(digest, start, None, None), signer)
    shard = replace(manifest.shards[number - 1], receipt=None)
    opening = {file.path: file.sha256 for file in manifest.files}[opening_path(number)]
    return signing.sign(Entry(digest, None, shard, opening), signer)


def _check_receipt(receipt: Receipt, entry: Entry, enrolment: Enrolment, *, origin: str) -> None:
    signing.check(receipt, enrolment.issuer, Ed25519Verifier(), place="receipt")
    said = (receipt.enrolment, receipt.shard, receipt.root)
    if said != (entry.enrolment, entry.number, entry.root):
        raise FormatError("is for another commitment than the one that was sent", place="receipt")
    if receipt.origin != origin:
        raise FormatError(f"names the log {receipt.origin[:80]!r}", place="receipt")


def _check_inclusion(inclusion: Inclusion, receipt: Receipt, entry: Entry) -> None:
    if inclusion.entry != entry:
        raise FormatError("shows another entry than the one that was sent", place="inclusion")
    if inclusion.index != receipt.index:
        raise FormatError("is for another place than the receipt names", place="inclusion")


class Lies:
    """A context that says of what is wrong inside it that the registry said it.

    Args:
        place: The registry's address.
        code: Which lie it would be.
        what: What would not hold.
    """

    def __init__(self, place: str, code: str, what: str) -> None:
        self._place = place
        self._code = code
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # That the registry went away, or that our own disk is full, is no lie.
        if isinstance(error, (FormatError, SignatureError)):
            raise DistrustError(
                f"the registry's answer does not hold: {self._what}: {error}",
                code=self._code,
                place=self._place,
                advice="Keep the proof, its .state folder and the enrolment folder as they are: "
                "they show it. Do not go on at this registry before its operator has explained.",
            ) from error


def _text(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("is no text", place=place) from error
