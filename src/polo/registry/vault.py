"""Keys and secrets at rest.

One data key, in a file that its owner alone can read, encrypts everything secret in the database:
the κ of enrolments and the registry's own private keys. A copy of the database without that file
shows none of them, and a backup without it cannot sign: keep both, apart.

The registry has an issuer key, which signs enrolments, receipts and verdicts, and a log key, which
signs checkpoints. Rotation makes a new key for what is new; a running chain goes on under the keys
in its enrolment, and what an old key signed stays valid. Others know the log by its name and key,
so there the old key hands over in a note of its own (`polo.registry.log.keys`).
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, insert, select, update

from polo.errors import FormatError, StoreError
from polo.keys import Identity
from polo.registry.schema import issuer_keys

KEY_FILE = "data.key"
ISSUER = "issuer"
LOG = "log"

_VERSION = b"\x01"
_NONCE = 12


@dataclass(frozen=True)
class Published:
    """One of the registry's public keys.

    Attributes:
        key: The raw public key.
        use: `issuer` or `log`.
        since: From when it signs.
        until: When a newer key took over; None for the one that is taken now.
    """

    key: bytes
    use: str
    since: int
    until: int | None


class Vault:
    """Seals and opens secrets, and holds the registry's keys.

    Args:
        data_key: 32 bytes.
    """

    def __init__(self, data_key: bytes) -> None:
        self._cipher = AESGCM(data_key)
        self._held: dict[tuple[str, bytes], Identity] = {}
        self._lock = threading.Lock()

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """The vault whose data key is in this folder; makes both if they are not there."""
        path = folder / KEY_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_key_file(path)
            mode = path.stat().st_mode
            data_key = path.read_bytes()
        except OSError as error:
            raise StoreError(
                f"cannot be used: {error.strerror}",
                place=str(path),
                advice="The registry needs a folder of its own that it may write to: --data FOLDER",
            ) from error
        if mode & 0o077:
            raise StoreError(
                "others can read the data key", place=str(path), advice=f"chmod 600 {path}"
            )
        if len(data_key) != 32:
            raise FormatError("is no data key: it has 32 bytes", place=str(path))
        return cls(data_key)

    def seal(self, secret: bytes, about: str) -> bytes:
        """Encrypt; it opens only with the same `about`, so nothing can be put elsewhere."""
        nonce = os.urandom(_NONCE)
        return _VERSION + nonce + self._cipher.encrypt(nonce, secret, about.encode())

    def open(self, sealed: bytes, about: str) -> bytes:
        """Decrypt what `seal` made."""
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            return self._cipher.decrypt(
                sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :], about.encode()
            )
        except (InvalidTag, ValueError) as error:
            raise StoreError(
                "a secret in the database does not open with this data key",
                place=about,
                advice=f"Put back the {KEY_FILE} that belongs to this database.",
            ) from error

    def prepare(self, connection: Connection, now: int) -> None:
        """Make the keys that are not there yet, and see that this data key opens the others."""
        for use in (ISSUER, LOG):
            if self._current(connection, use) is None:
                self._make(connection, use, now)
            self._take(connection, use)

    def rotate(self, connection: Connection, now: int, use: str = ISSUER) -> Identity:
        """A new key, for what is signed from now on."""
        connection.execute(
            update(issuer_keys)
            .where(issuer_keys.c.use == use, issuer_keys.c.until.is_(None))
            .values(until=now)
        )
        return self._make(connection, use, now)

    def issuer(self, connection: Connection) -> Identity:
        """The key that signs new enrolments."""
        return self._take(connection, ISSUER)

    def log_key(self, connection: Connection) -> Identity:
        """The key that signs checkpoints of the log."""
        return self._take(connection, LOG)

    def issuer_of(self, connection: Connection, public_key: bytes) -> Identity:
        """The issuer key with this public key, however old."""
        return self._of(connection, ISSUER, public_key)

    def log_key_of(self, connection: Connection, public_key: bytes) -> Identity:
        """The log key with this public key, however old."""
        return self._of(connection, LOG, public_key)

    def _of(self, connection: Connection, use: str, public_key: bytes) -> Identity:
        if held := self._held.get((use, public_key)):
            return held
        sealed = connection.execute(
            select(issuer_keys.c.private).where(
                issuer_keys.c.key == public_key, issuer_keys.c.use == use
            )
        ).scalar()
        if sealed is None:
            raise StoreError(f"key {public_key.hex()[:16]}… is none of this registry's")
        return self._hold(public_key, use, sealed)

    def published(self, connection: Connection) -> list[Published]:
        """All public keys, the oldest first."""
        order = (issuer_keys.c.since, issuer_keys.c.use, issuer_keys.c.key)
        columns = (issuer_keys.c.key, issuer_keys.c.use, issuer_keys.c.since, issuer_keys.c.until)
        rows = connection.execute(select(*columns).order_by(*order))
        return [Published(bytes(row.key), row.use, row.since, row.until) for row in rows]

    def _take(self, connection: Connection, use: str) -> Identity:
        row = self._current(connection, use)
        if row is None:
            raise StoreError(f"the registry has no {use} key yet", advice="polo registry migrate")
        return self._held.get((use, row[0])) or self._hold(row[0], use, row[1])

    def _current(self, connection: Connection, use: str) -> tuple[bytes, bytes] | None:
        row = connection.execute(
            select(issuer_keys.c.key, issuer_keys.c.private).where(
                issuer_keys.c.use == use, issuer_keys.c.until.is_(None)
            )
        ).first()
        return (bytes(row.key), bytes(row.private)) if row else None

    def _make(self, connection: Connection, use: str, now: int) -> Identity:
        private = Ed25519PrivateKey.generate()
        identity = Identity(private)
        sealed = self.seal(private.private_bytes_raw(), _about(use, identity.public_key))
        connection.execute(
            insert(issuer_keys).values(
                key=identity.public_key, use=use, private=sealed, since=now, until=None
            )
        )
        return identity

    def _hold(self, public_key: bytes, use: str, sealed: bytes) -> Identity:
        raw = self.open(sealed, _about(use, public_key))
        identity = Identity(Ed25519PrivateKey.from_private_bytes(raw))
        if identity.public_key != public_key:
            raise StoreError(f"the {use} key in the database is not the one beside it")
        with self._lock:
            self._held[use, public_key] = identity
        return identity


def _about(use: str, public_key: bytes) -> str:
    return f"{use} key {public_key.hex()}"


def _make_key_file(path: Path) -> None:
    """Write a new data key, whole or not at all, unless there is one."""
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)  # Unlike a rename it never replaces one made meanwhile.
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        fresh.unlink()
