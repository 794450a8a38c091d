"""Keys: Ed25519 identities, public keys, and the issuers a user trusts.

Private keys are PEM files readable by their owner alone, with a passphrase by choice. Public
keys are PEM files ending in `.pub`. An identity's `id` is the fingerprint of its public key.
"""

import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from polo.errors import SignatureError, StoreError
from polo.protocol.records import identity_of

_MAX_KEY_FILE = 16 * 1024
_PRIME = 2**255 - 19
# y coordinates of the eight points whose order divides the cofactor; two of them share each sign.
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = {0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8}
# OpenSSL refuses some parameters (scrypt's, say) by an error that the package has no name for.
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, InternalError)
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Identity:
    """A private key; signs enrolments (an issuer) or proofs (a prover)."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self._public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """A new identity."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path | str, passphrase: bytes | None = None) -> Self:
        """Read a private key file.

        Args:
            path: The file.
            passphrase: Its passphrase; by default that in POLO_PASSPHRASE, if it needs one.
        """
        try:
            data = _read(Path(path))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                error.advise(
                    "polo keygen makes a key. A lost one cannot be replaced; see Keys in "
                    "docs/threat-model.md."
                )
            raise
        if b"PUBLIC KEY" in data:
            raise SignatureError(
                "this is a public key", place=str(path), advice="Give the .key file beside it."
            )
        if passphrase is None and b"ENCRYPTED" in data:
            passphrase = os.environ.get("POLO_PASSPHRASE", "").encode() or None
        try:
            private = serialization.load_pem_private_key(data, password=passphrase)
        except _UNREADABLE as error:
            locked = b"ENCRYPTED" in data
            raise SignatureError(
                f"not a readable private key: {' '.join(str(error).split())[:200]}",
                place=str(path),
                advice="Give the right passphrase, or set POLO_PASSPHRASE." if locked else "",
            ) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise SignatureError("not an Ed25519 key", place=str(path))
        return cls(private)

    def save(self, path: Path | str, passphrase: bytes | None = None) -> None:
        """Write the private key to a new file that only its owner can read."""
        protection = (
            serialization.BestAvailableEncryption(passphrase)
            if passphrase
            else serialization.NoEncryption()
        )
        data = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise StoreError(
                "exists already; a key is never overwritten", place=str(path)
            ) from error
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", place=str(path)) from error
        with os.fdopen(handle, "wb") as file:
            file.write(data)

    @property
    def public_key(self) -> bytes:
        """The raw public key."""
        return self._public

    @property
    def id(self) -> str:
        """The fingerprint that stands for this identity."""
        return identity_of(self._public).hex()

    def sign(self, message: bytes) -> bytes:
        """A signature over the message."""
        return self._private.sign(message)


class Ed25519Verifier:
    """Checks Ed25519 signatures; keys that verify more than one message's are refused."""

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the signature is this key's over this message."""
        try:
            _usable(public_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@functools.lru_cache(maxsize=1024)
def _usable(public_key: bytes) -> Ed25519PublicKey:
    """The key, if it is not a weak one; a registry checks the same few keys all day."""
    if is_weak(public_key):
        raise ValueError("a key of small order")
    return Ed25519PublicKey.from_public_bytes(public_key)


def is_weak(public_key: bytes) -> bool:
    """Whether a key is of small order, or not in canonical form.

    Under a key of small order one signature holds for any message.
    """
    y = int.from_bytes(public_key, "little") % 2**255
    return y >= _PRIME or y in _SMALL_ORDER


def save_public(public_key: bytes, path: Path | str) -> None:
    """Write a public key file."""
    data = Ed25519PublicKey.from_public_bytes(public_key).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    Path(path).write_bytes(data)


def load_public(path: Path | str) -> bytes:
    """The raw public key in a public key file."""
    data = _read(Path(path))
    if b"PRIVATE KEY" in data:
        raise SignatureError(
            "this is a private key", place=str(path), advice="Give the .pub file beside it."
        )
    try:
        public = serialization.load_pem_public_key(data)
    except _UNREADABLE as error:
        raise SignatureError("not a readable public key", place=str(path)) from error
    if not isinstance(public, Ed25519PublicKey):
        raise SignatureError("not an Ed25519 key", place=str(path))
    if is_weak(public.public_bytes_raw()):
        raise SignatureError("a key of small order, which anybody can sign for", place=str(path))
    return public.public_bytes_raw()


class TrustStore:
    """The issuers whose enrolments a user accepts: a folder of public keys."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder else default_trust_folder()

    def add(self, name: str, public_key: bytes) -> None:
        """Trust an issuer under a name."""
        path = self._path(name)
        if is_weak(public_key):
            raise SignatureError("a key of small order, which anybody can sign for", place=name)
        if path.exists():
            raise StoreError(f"an issuer named {name!r} is trusted already", place=str(path))
        self.folder.mkdir(parents=True, exist_ok=True)
        save_public(public_key, path)

    def remove(self, name: str) -> None:
        """Trust an issuer no longer."""
        path = self._path(name)
        if not path.exists():
            raise StoreError(f"no trusted issuer is named {name!r}", place=str(self.folder))
        path.unlink()

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(self.folder.glob("*.pub")):
            yield path.stem, load_public(path)

    def _path(self, name: str) -> Path:
        if not re.fullmatch(_NAME, name):
            raise StoreError(f"{name[:80]!r} is no name for an issuer", advice=f"Use {_NAME}")
        return self.folder / f"{name}.pub"


def default_trust_folder() -> Path:
    """Where trusted issuers are kept unless said otherwise: `POLO_TRUST`, or the XDG folder."""
    if chosen := os.environ.get("POLO_TRUST"):
        return Path(chosen)
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:  # A user without a home has no store, and may still name issuers.
        base = "/nonexistent"
    return Path(base) / "polo" / "trust"


Trust = bytes | str | Path | TrustStore
"""An issuer to trust: a raw public key, a public key file, or a whole trust store."""


def trusted_keys(trust: Trust | Iterable[Trust]) -> dict[bytes, str]:
    """Names by public key of everybody in `trust`."""
    if isinstance(trust, bytes):
        return {trust: identity_of(trust).hex()[:16]}
    if isinstance(trust, TrustStore):
        return {key: name for name, key in trust}
    if isinstance(trust, (str, Path)):
        return {load_public(trust): Path(trust).stem}
    found: dict[bytes, str] = {}
    for item in trust:
        found.update(trusted_keys(item))
    return found


def _read(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK a pipe in the place of a key would be waited for, for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_KEY_FILE + 1) if plain else b""
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except ValueError as error:
        raise StoreError(f"cannot be read: {error}", place=str(path)) from error
    if not plain:
        raise StoreError("is not a plain file", place=str(path))
    if len(data) > _MAX_KEY_FILE:
        raise SignatureError("too large for a key", place=str(path))
    return data
