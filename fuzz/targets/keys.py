"""Key files."""

import base64
import functools
import random
from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fuzz import mutation, promises, sandbox
from fuzz.target import Target
from polo import keys

_PASSPHRASE = b"x"


def check(data: bytes) -> None:
    """Refused, or a key that signs and verifies."""
    path = sandbox.file(data)
    with promises.refusals():
        public = keys.load_public(path)
        promises.require(len(public) == 32, "a public key has 32 bytes")
        promises.require(not keys.is_weak(public), "no weak key is read")
    for passphrase in (None, _PASSPHRASE):
        with promises.refusals():
            identity = keys.Identity.load(path, passphrase)
            signature = identity.sign(data)
            holds = keys.Ed25519Verifier().verify(identity.public_key, data, signature)
            promises.require(holds, "a key's signatures hold")


@functools.cache
def files() -> tuple[bytes, ...]:
    """A public key, a private key, and one with a passphrase."""
    identity = keys.Identity(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    folder = sandbox.folder("keys")
    keys.save_public(identity.public_key, folder / "public")
    identity.save(folder / "private")
    identity.save(folder / "locked", _PASSPHRASE)
    return tuple((folder / name).read_bytes() for name in ("public", "private", "locked"))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes inside the armour are changed, as often as the armour itself."""
    lines = data.split(b"\n")
    if not rng.randrange(3) or len(lines) < 3:
        return mutation.raw(data, rng)
    inner = mutation.raw(base64.b64decode(b"".join(lines[1:-2])), rng)
    return b"\n".join([lines[0], base64.encodebytes(inner).strip(), *lines[-2:]])


def seeds() -> Iterator[bytes]:
    """Real key files, and armour around other kinds of keys."""
    yield from files()
    for kind in (b"EC PRIVATE KEY", b"RSA PRIVATE KEY", b"OPENSSH PRIVATE KEY", b"DSA PRIVATE KEY"):
        yield files()[1].replace(b"PRIVATE KEY", kind)
    yield files()[0].replace(b"PUBLIC KEY", b"RSA PUBLIC KEY")


TARGET = Target(check, seeds, mutate)
