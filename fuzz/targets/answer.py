"""The signed part of a prover's answer, as a verifier reads it."""

from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fuzz import mutation, promises, sandbox, seeds
from fuzz.target import Target
from polo.evidence.replay.shown import Shown
from polo.keys import Ed25519Verifier, Identity
from polo.protocol import signing
from polo.protocol.challenge import ANSWER_FILE, Answer, Challenge, Place, Secret

CHALLENGE = Challenge(bytes(32), (Place(1, 0),), (1, 2), False, 0)
_KEY = Identity(Ed25519PrivateKey.from_private_bytes(bytes(32)))


def check(data: bytes) -> None:
    """Refused, or an answer to this very challenge; signed only if it is the one that was."""
    folder = sandbox.folder("answer")
    (folder / ANSWER_FILE).write_bytes(data)
    with promises.refusals(), promises.confined():
        found = Shown(folder, CHALLENGE, seeds.layout(), None).record()
        promises.require(found.to_bytes() == data, "an answer has one spelling")
        promises.require(found.challenge == CHALLENGE.digest, "an answer is to this challenge")
        promises.require("secret=" not in repr(found), "a secret is not printed")
        signing.check(found, _KEY.public_key, Ed25519Verifier(), place=ANSWER_FILE)
        promises.require(data in _signed(), "nobody else signed it")


def _signed() -> list[bytes]:
    secrets = (), (Secret(1, bytes(32)), Secret(2, bytes([1] * 32)))
    answers = (Answer(CHALLENGE.digest, shown) for shown in secrets)
    return [signing.sign(answer, _KEY).to_bytes() for answer in answers]


def documents() -> Iterator[bytes]:
    """Answers with and without secrets, and one to another challenge."""
    yield from _signed()
    yield signing.sign(Answer(bytes(32), ()), _KEY).to_bytes()


TARGET = Target(check, documents, mutation.document)
