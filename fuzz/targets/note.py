"""Signed notes: checkpoints of a log, cosignatures, and the keys that they name."""

import functools
import random
from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fuzz import mutation, promises
from fuzz.target import Target
from polo.keys import Ed25519Verifier, Identity
from polo.protocol import log_notes
from polo.protocol.log_notes import COSIGNATURE, Checkpoint, Note, NoteKey

ORIGIN = "registry.example/log"
LOG = Identity(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
WITNESS = Identity(Ed25519PrivateKey.from_private_bytes(bytes([2] * 32)))
LOG_KEY = NoteKey(ORIGIN, LOG.public_key)
WITNESS_KEY = NoteKey("witness.example", WITNESS.public_key, COSIGNATURE)
HEADS = tuple(Checkpoint(ORIGIN, size, bytes([size] * 32)) for size in (0, 1, 200))
TIME = 1_800_000_000


@functools.cache
def signed() -> tuple[Note, ...]:
    """What log and witness signed, and nothing else."""
    found = []
    for head in HEADS:
        note = log_notes.sign_checkpoint(head, LOG)
        line = log_notes.cosign(note.text, WITNESS_KEY.name, WITNESS, TIME)
        found += [note, note.signed(line)]
    return tuple(found)


def check(data: bytes) -> None:
    """Refused, or of one spelling; believed only if it was signed."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    with promises.refusals():
        key = NoteKey.parse(text, place="input")
        promises.require(key.text == text, "a key has one spelling")
    with promises.refusals():
        note = Note.parse(text, place="input")
        promises.require(str(note) == text, "a note has one spelling")
        times = log_notes.cosigned(note, [WITNESS_KEY], Ed25519Verifier(), place="input")
        promises.require(set(times.values()) <= {TIME}, "a witness's time is its own")
        head = log_notes.open_checkpoint(note, LOG_KEY, Ed25519Verifier(), place="input")
        promises.require(head in HEADS, "only what the log signed is believed")
        promises.require(head.text == note.text, "a checkpoint has one spelling")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Lines are changed, exchanged, repeated; or bytes, blindly."""
    if not rng.randrange(3):
        return mutation.raw(data, rng)
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    fresh = rng.choice((b"", lines[other], b"9" * 20, b"\xe2\x80\x94 a AAAAAAA=", lines[at][:-1]))
    change = rng.choice(("put", "take", "swap", "set"))
    if change == "put":
        lines[at:at] = [fresh] * rng.choice((1, 1, 70))
    elif change == "take":
        del lines[at]
    elif change == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = mutation.raw(lines[at], rng) if rng.randrange(2) else fresh
    return b"\n".join(lines)


def notes() -> Iterator[bytes]:
    """Checkpoints with and without a cosignature, and keys."""
    yield from (str(note).encode() for note in signed())
    yield from (key.text.encode() for key in (LOG_KEY, WITNESS_KEY))


TARGET = Target(check, notes, mutate, most_bytes=32 * 1024)
