"""Where nonces come from.

A prover commits to a checkpoint and gets the nonce of the next shard back. Offline the nonces
were drawn at enrolment and lie in a file; live a registry answers with a receipt. Both are a
`NonceSource`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from polo.errors import SignatureError, StoreError
from polo.keys import Ed25519Verifier
from polo.protocol import canonical, nonces, signing
from polo.protocol.records import Enrolment, Nonce, NonceList, Receipt
from polo.weights.files import open_plain

ENROLMENT_FILE = "enrolment.json"
NONCES_FILE = "nonces.json"


@dataclass(frozen=True)
class Answer:
    """The answer to a commitment.

    Attributes:
        receipt: The registry's receipt; None offline.
        nonce: The next shard's nonce; None when there are no more.
    """

    receipt: Receipt | None
    nonce: Nonce | None


class NonceSource(Protocol):
    """Takes commitments and gives nonces."""

    def commit(self, shard: int, root: bytes) -> Answer:
        """Commit to the end of a shard (0: the start) and get the nonce of the next."""


class OfflineNonces:
    """Nonces that were drawn at enrolment."""

    def __init__(self, drawn: tuple[Nonce, ...]) -> None:
        self._by_shard = {nonce.shard: nonce for nonce in drawn}

    def commit(self, shard: int, root: bytes) -> Answer:
        """The nonce of the next shard. Offline nobody notes the root."""
        del root
        return Answer(None, self._by_shard.get(shard + 1))


@dataclass(frozen=True)
class OfflineEnrolment:
    """An enrolment with its nonces: what an issuer hands to a prover.

    Attributes:
        record: The signed enrolment, which is public.
        drawn: The nonces, which are confidential.
    """

    record: Enrolment
    drawn: tuple[Nonce, ...]

    @property
    def nonces(self) -> OfflineNonces:
        """The source that a prover asks."""
        return OfflineNonces(self.drawn)

    def save(self, folder: Path | str) -> None:
        """Write `enrolment.json` and, readable by its owner alone, `nonces.json`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / ENROLMENT_FILE).exists():
            raise StoreError("holds an enrolment already", place=str(folder))
        handle = os.open(folder / NONCES_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(NonceList(self.record.digest, self.drawn).to_bytes())
        (folder / ENROLMENT_FILE).write_bytes(self.record.to_bytes())

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what `save` wrote, and check that issuer and nonces belong together."""
        folder = Path(folder)
        record = Enrolment.from_bytes(_document(folder / ENROLMENT_FILE), ENROLMENT_FILE)
        listed = NonceList.from_bytes(_document(folder / NONCES_FILE), NONCES_FILE)
        enrolment = cls(record, listed.nonces)
        enrolment.check()
        if listed.enrolment != record.digest:
            raise SignatureError("these nonces belong to another enrolment", place=str(folder))
        return enrolment

    def check(self) -> None:
        """Refuse an enrolment whose signature or nonces do not hold."""
        verifier = Ed25519Verifier()
        signing.check(self.record, self.record.issuer, verifier, place=ENROLMENT_FILE)
        for nonce in self.drawn:
            nonces.check(nonce, self.record, (), verifier, place=NONCES_FILE)


def _document(path: Path) -> bytes:
    """A file, or of one that is too large as much as shows it."""
    with open_plain(path) as file:
        return file.read(canonical.MAX_DOCUMENT_BYTES + 1)
