"""An enrolment at a registry, as a trainer keeps it: a folder beside the work.

`enrolment.json` holds the signed terms, `registry.json` where the registry is and what it calls
itself, and `log-checkpoint.txt` the newest checkpoint of its log that was seen. None of it is
secret; the nonces come one by one, and lie beside the proof.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from polo.client.checking import MEMORY_FILE, LogMemory, log_of
from polo.client.http import checked_url
from polo.errors import SignatureError, StoreError, TermsError
from polo.keys import Ed25519Verifier
from polo.protocol import canonical, signing
from polo.protocol.fields import Record, Text, of
from polo.protocol.records import Enrolment
from polo.receipts import ENROLMENT_FILE, NonceSource, OfflineEnrolment
from polo.storage import atomic, received
from polo.storage.folder import ProofFolder, state_path_of
from polo.weights.files import open_plain

if TYPE_CHECKING:
    from polo.client.client import Client

REGISTRY_FILE = "registry.json"


@dataclass(frozen=True)
class Address(Record):
    """The file `registry.json`: where a registry is, and the name that requests are signed for."""

    FORMAT = "polo-registry-1"

    url: str = of(Text(512, r"https?://[!-~]+"))
    origin: str = of(Text(256, r"[!-~]+"))


@dataclass(frozen=True)
class LiveEnrolment:
    """Terms that a registry signed for this identity; nonces come in its receipts.

    Attributes:
        record: The signed enrolment.
        address: The registry.
        folder: Where it is saved, and the log's newest checkpoint with it; None if it is not.
    """

    record: Enrolment
    address: Address
    folder: Path | None = None

    @property
    def id(self) -> str:
        """What the registry calls it."""
        return self.record.digest.hex()

    def check(self) -> None:
        """Refuse an enrolment that the issuer did not sign, or that is not live."""
        signing.check(self.record, self.record.issuer, Ed25519Verifier(), place=ENROLMENT_FILE)
        if self.record.nonces.kind != "live":
            raise TermsError(
                "these terms were issued offline; no registry takes part", place=ENROLMENT_FILE
            )
        origin, _ = log_of(self.record)
        if origin != self.address.origin:
            raise SignatureError(
                f"the terms are for the registry {origin[:80]!r}, not {self.address.origin[:80]!r}",
                place=str(self.folder or REGISTRY_FILE),
            )

    def memory(self) -> LogMemory:
        """What was seen of the registry's log."""
        origin, key = log_of(self.record)
        return LogMemory(origin, key, self.folder / MEMORY_FILE if self.folder else None)

    def client(self, signer: signing.Signer, registry: str | None = None) -> "Client":
        """A client of the registry.

        Args:
            signer: The key that counts there: the enrolled one, or that which took its place.
            registry: The registry's address, if it has moved.
        """
        from polo.client.client import Client

        return Client(registry or self.address.url, signer, origin=self.address.origin)

    def source(
        self,
        signer: signing.Signer,
        registry: str | None = None,
        *,
        asker: signing.Signer | None = None,
    ) -> NonceSource:
        """The source of nonces; see `polo.receipts.EnrolmentSource`.

        Args:
            signer: The enrolled key, which signs entries.
            registry: The registry's address, if it has moved.
            asker: The key that counts at the registry, if another took the place of the enrolled.
        """
        from polo.client.courier import LiveNonces

        return LiveNonces(self, self.client(asker or signer, registry), signer)

    def remember(self, state: Path, registry: str | None = None) -> None:
        """Note beside a proof where its registry is, so that it can be handed in from there."""
        address = Address(registry or self.address.url, self.address.origin)
        path = state / REGISTRY_FILE
        if not path.exists() or _document(path) != address.to_bytes():
            atomic.write(path, address.to_bytes())

    @classmethod
    def of_proof(cls, proof: Path | str, registry: str | None = None) -> Self:
        """The enrolment that a proof was made under.

        Args:
            proof: The folder.
            registry: The registry's address; by default that which the trainer used.
        """
        manifest, state = ProofFolder(proof).manifest(), state_path_of(proof)
        record = manifest.enrolment
        if record.nonces.kind != "live":
            raise TermsError(
                "was made under offline terms, so there is nothing to hand in",
                place=str(proof),
                advice="Give the folder itself, or a bundle of it (polo export), to the verifier.",
            )
        if registry is None and not (state / REGISTRY_FILE).exists():
            raise StoreError(
                "nothing beside the proof says where its registry is",
                place=str(proof),
                advice="Name it: --registry URL",
            )
        origin, _ = log_of(record)
        if registry is None:
            address = Address.from_bytes(_document(state / REGISTRY_FILE), REGISTRY_FILE)
        else:
            address = Address(checked_url(registry), origin)
        enrolment = cls(record, address, state if state.is_dir() else None)
        enrolment.check()
        _recall(state, len(manifest.shards))
        return enrolment

    def save(self, folder: Path | str) -> "LiveEnrolment":
        """Write it into a new folder; returns it as it is there."""
        folder = Path(folder)
        if os.path.lexists(folder / ENROLMENT_FILE):
            raise StoreError(
                "holds an enrolment already", place=str(folder), advice="Give another folder."
            )
        atomic.write(folder / REGISTRY_FILE, self.address.to_bytes())
        atomic.write(folder / ENROLMENT_FILE, self.record.to_bytes())
        return LiveEnrolment(self.record, self.address, folder)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what `save` wrote, and check it."""
        folder = Path(folder)
        record = Enrolment.from_bytes(_document(folder / ENROLMENT_FILE), ENROLMENT_FILE)
        address = Address.from_bytes(_document(folder / REGISTRY_FILE), REGISTRY_FILE)
        enrolment = cls(record, address, folder)
        enrolment.check()
        return enrolment


def load_enrolment(folder: Path | str) -> OfflineEnrolment | LiveEnrolment:
    """What an issuer or a registry gave: an enrolment of either kind."""
    if (Path(folder) / REGISTRY_FILE).exists():
        return LiveEnrolment.load(folder)
    return OfflineEnrolment.load(folder)


def _recall(state: Path, shards: int) -> None:
    """Remember beside a proof the checkpoint of the log that its last answer came with."""
    answer = received.kept(state, shards) or received.kept(state, shards - 1)
    if answer and answer.inclusion and not (state / MEMORY_FILE).exists():
        atomic.write(state / MEMORY_FILE, answer.inclusion.checkpoint.encode())


def _document(path: Path) -> bytes:
    with open_plain(path) as file:
        return file.read(canonical.MAX_DOCUMENT_BYTES + 1)
