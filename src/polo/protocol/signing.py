"""Signing, as the protocol sees it; `polo.keys` has the Ed25519 implementation."""

from typing import Protocol, TypeVar

from polo.errors import SignatureError
from polo.protocol.records import SignedRecord


class Signer(Protocol):
    """Holds a private key."""

    @property
    def public_key(self) -> bytes:
        """The raw public key."""

    def sign(self, message: bytes) -> bytes:
        """A signature over the message."""


class SignatureVerifier(Protocol):
    """Checks signatures."""

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over this message."""


S = TypeVar("S", bound=SignedRecord)


def sign(record: S, signer: Signer) -> S:
    """The record with this signer's signature."""
    return record.signed(signer.sign(record.message()))


def check(
    record: SignedRecord, public_key: bytes, verifier: SignatureVerifier, *, place: str
) -> None:
    """Refuse a record that this key did not sign."""
    if not verifier.verify(public_key, record.message(), record.signature):
        raise SignatureError(
            f"the signature is not the one of key {public_key.hex()[:16]}… over these bytes",
            place=place,
        )
