"""Where nonces come from.

A prover commits to a checkpoint and gets the nonce of the next shard back. Offline the nonces
were drawn at enrolment and lie in a file; live a registry answers with a receipt, which may take a
while. Both are a `NonceSource`.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, TypeAlias

from polo.errors import SignatureError, StoreError, TermsError
from polo.keys import Ed25519Verifier
from polo.protocol import canonical, nonces, signing
from polo.protocol.challenge import Challenge
from polo.protocol.entries import Inclusion
from polo.protocol.records import Enrolment, File, Nonce, NonceList, Receipt, Shard, Start
from polo.weights.files import open_plain

Respond: TypeAlias = "Callable[[Challenge, bytes], Future[Path]]"
"""Answers a challenge, given the leaf of the shard's entry in the log; the answer is one file."""

ENROLMENT_FILE = "enrolment.json"
NONCES_FILE = "nonces.json"


@dataclass(frozen=True)
class Submission:
    """What a prover commits to: a start or a sealed shard, as the store holds it.

    It follows from the store alone, so after a crash the same one is handed over again.

    Attributes:
        about: The record of the start or of the shard, without a receipt.
        folder: The proof.
        files: The shard's files in it: its `opening`, its `checkpoint` while that is kept, the
            `record` of its steps where there is one.
        respond: Answers what a registry draws from the shard's steps before it gives the receipt;
            None where nobody here can.
    """

    about: Start | Shard
    folder: Path
    files: Mapping[str, File] = field(default_factory=dict)
    respond: "Respond | None" = field(default=None, compare=False)

    @property
    def number(self) -> int:
        """The shard's number; 0 for the start."""
        return self.about.shard if isinstance(self.about, Shard) else 0


@dataclass(frozen=True)
class Answer:
    """The answer to a commitment.

    Attributes:
        receipt: The registry's receipt; None offline.
        nonce: The next shard's nonce; None when there are no more.
        inclusion: That the commitment is in the registry's log; None offline.
    """

    receipt: Receipt | None
    nonce: Nonce | None
    inclusion: Inclusion | None = None


class NonceSource(Protocol):
    """Takes commitments and gives nonces."""

    @property
    def trouble(self) -> str:
        """Why the answer to the last commitment takes so long; empty if nothing is wrong."""

    def commit(self, submission: Submission) -> "Future[Answer]":
        """Commit to the end of a shard, or to the start, and get the nonce of the next shard.

        The answer comes when it comes. What is handed over is on disk already, and committing to
        the same again leads to the same answer.
        """

    def finish(self, folder: Path, *, wait: float = 0.0) -> None:
        """The proof in this folder is finished, answered for, and nobody holds its lock.

        What the other side has to say on it may become part of it; that is waited for so many
        seconds at most.
        """

    def close(self) -> None:
        """Stop waiting for answers."""


class EnrolmentSource(Protocol):
    """An enrolment and where its nonces come from."""

    @property
    def record(self) -> Enrolment:
        """The signed enrolment."""

    def source(self, signer: signing.Signer, registry: str | None = None) -> NonceSource:
        """The source of nonces for whoever holds the enrolled key.

        Args:
            signer: The enrolled key.
            registry: Address of the registry, if it is another than the enrolment names.
        """


class OfflineNonces:
    """Nonces that were drawn at enrolment."""

    trouble = ""

    def __init__(self, drawn: tuple[Nonce, ...]) -> None:
        self._by_shard = {nonce.shard: nonce for nonce in drawn}

    def of(self, shard: int) -> Nonce | None:
        """The nonce of a shard; None where the terms allow no such shard."""
        return self._by_shard.get(shard)

    def commit(self, submission: Submission) -> "Future[Answer]":
        """The nonce of the next shard, at once. Offline nobody notes what was committed to."""
        return answered(Answer(None, self.of(submission.number + 1)))

    def finish(self, folder: Path, *, wait: float = 0.0) -> None:
        """Offline nobody needs to know."""

    def close(self) -> None:
        """Offline nothing is waited for."""


def answered(answer: Answer) -> "Future[Answer]":
    """An answer that is there already."""
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future


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
        """The nonces by shard."""
        return OfflineNonces(self.drawn)

    def source(self, signer: signing.Signer, registry: str | None = None) -> NonceSource:
        """The source that a prover asks; see `EnrolmentSource`."""
        del signer
        if registry is not None:
            raise TermsError(
                "these terms were issued offline, with all nonces; no registry takes part in them",
                place=registry[:200],
                advice="Leave the registry out, or enrol at it: polo enrol --registry URL",
            )
        return self.nonces

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
