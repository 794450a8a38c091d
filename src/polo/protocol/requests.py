"""Signed requests: how a registry knows which identity is asking.

The signature is over the method, the registry's name, the path with its query, the body's digest,
the time and a nonce. So a request cannot be sent to another registry, changed on its way, kept for
later, or sent a second time.

    Authorization: PoLO key=<hex>,time=<unix>,nonce=<32 hex>,signature=<hex>

Specification: docs/protocol.md, section 21.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from polo.errors import FormatError
from polo.protocol.signing import Signer

SCHEME = "PoLO"
WINDOW = 120
"""Seconds that a request's time may be from the registry's clock, either way."""

NONCE_BYTES = 16
MAX_HEADER = 512
MAX_TARGET = 8192

_METHOD = re.compile(r"[A-Z]{1,16}")
_ORIGIN = re.compile(r"[!-~]{1,256}")
_TARGET = re.compile(r"/[!-~]*")
_HEADER = re.compile(
    r"PoLO key=([0-9a-f]{64}),time=(0|[1-9][0-9]{0,14}),"
    r"nonce=([0-9a-f]{32}),signature=([0-9a-f]{128})"
)


@dataclass(frozen=True)
class Authorization:
    """What the header of a signed request says.

    Attributes:
        key: The raw public key of whoever asks.
        time: When it was signed, in seconds since 1970.
        nonce: 16 bytes that this key never used before.
        signature: Over `message`.
    """

    key: bytes
    time: int
    nonce: bytes
    signature: bytes

    def header(self) -> str:
        """The value of the `Authorization` header."""
        return (
            f"{SCHEME} key={self.key.hex()},time={self.time},"
            f"nonce={self.nonce.hex()},signature={self.signature.hex()}"
        )

    @classmethod
    def parse(cls, header: str) -> Self:
        """Read the value of an `Authorization` header; there is one way to write it."""
        found = _HEADER.fullmatch(header) if len(header) <= MAX_HEADER else None
        if found is None:
            raise FormatError(
                "not the header of a signed request",
                place="Authorization",
                advice=f"{SCHEME} key=<hex>,time=<unix>,nonce=<32 hex>,signature=<hex>",
            )
        key, time, nonce, signature = found.groups()
        return cls(bytes.fromhex(key), int(time), bytes.fromhex(nonce), bytes.fromhex(signature))

    def is_fresh(self, now: int) -> bool:
        """Whether the time is near enough to the registry's."""
        return abs(now - self.time) <= WINDOW


def message(
    method: str, origin: str, target: str, body_digest: bytes, time: int, nonce: bytes
) -> bytes:
    r"""The bytes that are signed.

    Args:
        method: GET, POST, …
        origin: The registry's name, which is also its log's.
        target: Path and query as they are sent, so with escapes.
        body_digest: SHA-256 of the body; that of no bytes for a request without one.
        time: Seconds since 1970.
        nonce: 16 bytes.

    >>> message("GET", "polo.example", "/v1/tasks", body_digest(b""), 7, bytes(16))[:46]
    b'polo request 1\nGET\npolo.example\n/v1/tasks\ne3b0'
    """
    parts = (("method", method, _METHOD), ("origin", origin, _ORIGIN), ("path", target, _TARGET))
    for name, value, pattern in parts:
        if len(value) > MAX_TARGET or not pattern.fullmatch(value):
            raise FormatError(f"{value[:80]!r} is no {name} of a request", place="request")
    if len(body_digest) != 32 or len(nonce) != NONCE_BYTES:
        raise FormatError("the digest has 32 bytes and the nonce 16", place="request")
    lines = ("polo request 1", method, origin, target, body_digest.hex(), str(time), nonce.hex())
    return "\n".join(lines).encode("ascii")


def body_digest(body: bytes) -> bytes:
    """SHA-256 of a request's body."""
    return hashlib.sha256(body).digest()


def sign(
    signer: Signer, method: str, origin: str, target: str, body: bytes, *, time: int, nonce: bytes
) -> str:
    """The value of the `Authorization` header for one request; see `message`."""
    return sign_over(signer, method, origin, target, body_digest(body), time=time, nonce=nonce)


def sign_over(
    signer: Signer, method: str, origin: str, target: str, digest: bytes, *, time: int, nonce: bytes
) -> str:
    """The same for a body of which only the digest is at hand, such as a large file."""
    signed = message(method, origin, target, digest, time, nonce)
    return Authorization(signer.public_key, time, nonce, signer.sign(signed)).header()


def rotation_message(identity: str, old: bytes, new: bytes) -> bytes:
    """What the new key of an identity signs, so that nobody rotates to a key they do not hold.

    Args:
        identity: The identity's id, in hexadecimal.
        old: The raw public key that counts now.
        new: The one that is to count.
    """
    return f"polo rotation 1\n{identity}\n{old.hex()}\n{new.hex()}".encode()
