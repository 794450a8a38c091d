"""A claimant: somebody's chain, checked and reduced to the marks that can be looked for.

Roots and nonces are all it takes to derive marks; checkpoints are not needed. Everything here
comes from the claimant and is hostile: signatures, the issuer and every nonce are checked first.
"""

import functools
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from polo.errors import FormatError, SignatureError, TermsError
from polo.keys import Ed25519Verifier
from polo.protocol import canonical, chain, signing
from polo.protocol.carrier import Carrier
from polo.protocol.layout import Layout
from polo.protocol.records import Manifest, identity_of
from polo.storage import history
from polo.storage.folder import LAYOUT_FILE, MANIFEST_FILE, ProofFolder, nonce_path
from polo.watermark.mark import Mark, carrier_of, derive
from polo.watermark.schemes import scheme
from polo.weights.files import FileCheckpoint


class UntrustedError(SignatureError):
    """A chain whose issuer the reader does not trust: it decides nothing."""


@dataclass(frozen=True)
class DerivedMark:
    """A mark that a claimant may look for.

    Attributes:
        shard: Its shard.
        mark: Positions, bits and key.
        live: Whether its nonce was issued after the checkpoint before was in the log.
    """

    shard: int
    mark: Mark
    live: bool


class Claimant:
    """A chain whose signatures hold, and whose issuer is trusted.

    Args:
        path: The proof folder.
        trusted: Names by public key of the issuers to accept.
        signed: Whether to check the signatures now; who does not must call `check_signatures`
            before anything is claimed.

    Raises:
        PoloError: The proof cannot be read, or a signature does not hold.
        UntrustedError: The issuer is not among those trusted.
    """

    def __init__(self, path: Path, trusted: Mapping[bytes, str], *, signed: bool = True) -> None:
        self.folder = ProofFolder(path)
        self.manifest: Manifest = self.folder.manifest()
        self._signatures = Ed25519Verifier()
        enrolment = self.manifest.enrolment
        if signed:
            self.check_signatures()
        if enrolment.issuer not in trusted:
            raise UntrustedError(
                f"the terms are signed by {identity_of(enrolment.issuer).hex()[:16]}…, whom you do "
                "not trust",
                place=str(path),
                advice="If you know this issuer, add --trust ISSUER.pub",
            )
        self.issuer = trusted[enrolment.issuer]
        if fault := next(_order(self.manifest), None):
            raise FormatError(f"shard {fault.shard}: {fault.detail}", place=str(path))
        scheme(self.manifest.terms.scheme.name)

    def check_signatures(self) -> None:
        """Refuse a chain that its issuer or its owner did not sign."""
        enrolment = self.manifest.enrolment
        signing.check(enrolment, enrolment.issuer, self._signatures, place="enrolment")
        signing.check(self.manifest, enrolment.identity, self._signatures, place=MANIFEST_FILE)

    @property
    def owner(self) -> str:
        """The identity that the chain belongs to."""
        return identity_of(self.manifest.enrolment.identity).hex()

    @property
    def live(self) -> bool:
        """Whether nonces came in receipts, each after the checkpoint before was in the log."""
        return self.manifest.enrolment.nonces.kind == "live"

    @property
    def shards(self) -> int:
        """Number of sealed shards."""
        return len(self.manifest.shards)

    @functools.cached_property
    def layout(self) -> Layout:
        """The layout that the terms name."""
        listed = next((file for file in self.manifest.files if file.path == LAYOUT_FILE), None)
        if listed is None:
            raise FormatError("is not in the signed list of files", place=LAYOUT_FILE)
        self.folder.check_file(listed, canonical.MAX_DOCUMENT_BYTES)
        layout = _layout(self.folder.layout_bytes())
        if layout.digest != self.manifest.terms.layout:
            raise TermsError("it is not the layout that the terms name", place=LAYOUT_FILE)
        return layout

    @functools.cached_property
    def carrier(self) -> Carrier:
        """The tensors that hold the marks."""
        return carrier_of(self.manifest.terms, self.layout)

    def checkpoints(self) -> Generator[tuple[int, FileCheckpoint], None, None]:
        """Every stored checkpoint that is here, newest first; nobody has checked their roots."""
        listed = [file.path for file in self.manifest.files if file.path.startswith("checkpoints/")]
        # A bundle for a buyer leaves them all out.
        here = {path for path in listed if os.path.lexists(self.folder.file(path))}
        yield from history.checkpoints(self.folder, self.manifest, self.layout, sound=here)

    def mark(self, shard: int) -> DerivedMark:
        """The mark of a shard.

        Raises:
            PoloError: Its nonce is not here, or is not the issuer's.
        """
        walk = chain.ChainWalk(self.manifest, self._signatures, at=shard)
        query = walk.open(self.folder.nonce(shard), place=nonce_path(shard))
        mark = derive(self.manifest.terms, self.carrier, query.seed)
        return DerivedMark(shard, mark, self.live)

    def marks(self) -> tuple[list[DerivedMark], list[int]]:
        """All marks that can be derived, oldest first, and the shards whose nonce is not here.

        Raises:
            PoloError: A nonce is here, and is not the issuer's.
        """
        listed = {file.path for file in self.manifest.files}
        marks, absent = [], []
        for shard in range(1, self.shards + 1):
            place = nonce_path(shard)
            if place in listed and self.folder.file(place).exists():
                marks.append(self.mark(shard))
            else:
                absent.append(shard)
        return marks, absent


@functools.lru_cache(maxsize=4)
def _layout(data: bytes) -> Layout:
    """A layout; of many claimants most have the same one, which is then parsed once."""
    return Layout.from_bytes(data, LAYOUT_FILE)


def _order(manifest: Manifest) -> Iterator[chain.Fault]:
    """Faults that would let one claimant derive marks from roots in no order."""
    return (fault for fault in chain.faults(manifest) if fault.check in ("order", "links"))
