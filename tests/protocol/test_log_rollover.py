"""A log's change of key: both keys sign it, and a reader follows from one to the other."""

import base64
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from polo.errors import FormatError, LimitError, PoloError, SignatureError
from polo.keys import Ed25519Verifier, Identity
from polo.protocol.log_notes import Checkpoint, Note, NoteKey, sign_checkpoint
from polo.protocol.log_rollover import Lineage, Rollover, open_rollover, sign_rollover

ORIGIN = "registry.example/log"
VERIFIER = Ed25519Verifier()


def identity(number: int) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


FIRST, SECOND, THIRD, OTHER = map(identity, (1, 2, 3, 4))


def key(of: Identity) -> NoteKey:
    return NoteKey(ORIGIN, of.public_key)


def at(size: int) -> Checkpoint:
    return Checkpoint(ORIGIN, size, bytes([size] * 32))


def lineage(known: Identity, *notes: Note) -> Lineage:
    return Lineage.of(key(known), notes, VERIFIER, place="log")


ONE = sign_rollover(at(5), FIRST, SECOND)
TWO = sign_rollover(at(9), SECOND, THIRD)


def test_it_comes_back_as_it_was_written():
    found = open_rollover(Note.parse(str(ONE), place="note"), VERIFIER, place="note")
    assert found == Rollover(at(5), key(FIRST), key(SECOND))
    with pytest.raises(FormatError):  # Nobody can take it for a checkpoint.
        Checkpoint.parse(ONE.text, place="note")


@pytest.mark.parametrize("known", [FIRST, SECOND, THIRD])
def test_every_key_leads_to_all(known):
    found = lineage(known, TWO, ONE)
    assert found.keys == (key(FIRST), key(SECOND), key(THIRD))
    assert [item.at.size for item in found.rollovers] == [5, 9]
    assert found.newest == key(THIRD)
    assert lineage(known).keys == (key(known),)


def test_what_another_key_signed_is_refused():
    forged = sign_rollover(at(5), OTHER, SECOND)
    text = Rollover(at(5), key(FIRST), key(SECOND)).text
    with pytest.raises(SignatureError, match="which is replaced did not sign"):
        lineage(FIRST, Note(text, forged.signatures))
    # Signed by both, and none of them is known: it leads nowhere.
    assert lineage(FIRST, forged).keys == (key(FIRST),)
    renamed = [replace(item, id=key(FIRST).id) for item in forged.signatures[:1]]
    with pytest.raises(SignatureError, match="which is replaced"):
        lineage(FIRST, Note(text, (*renamed, *ONE.signatures[1:])))


def test_nobody_hands_over_to_a_key_that_does_not_sign():
    with pytest.raises(SignatureError, match="which takes over did not sign"):
        lineage(FIRST, Note(ONE.text, ONE.signatures[:1]))


def test_one_key_has_one_successor():
    with pytest.raises(SignatureError, match="two keys took over"):
        lineage(FIRST, ONE, sign_rollover(at(5), FIRST, THIRD))
    with pytest.raises(SignatureError, match="two keys took over"):
        lineage(THIRD, TWO, sign_rollover(at(5), FIRST, THIRD))
    assert lineage(FIRST, ONE, ONE).keys == (key(FIRST), key(SECOND))
    with pytest.raises(SignatureError, match="circle"):
        lineage(FIRST, ONE, sign_rollover(at(6), SECOND, FIRST))
    with pytest.raises(SignatureError, match="before the one before"):
        lineage(FIRST, ONE, sign_rollover(at(4), SECOND, THIRD))
    with pytest.raises(LimitError):
        lineage(FIRST, *[ONE] * 65)


def test_a_checkpoint_counts_by_the_key_of_its_size():
    found = lineage(FIRST, ONE)
    for size, signer in [(5, FIRST), (3, FIRST), (6, SECOND), (5, SECOND)]:
        note = sign_checkpoint(at(size), signer)
        assert found.open(note, VERIFIER, place="head") == at(size)
    with pytest.raises(SignatureError, match="another had taken over from"):
        found.open(sign_checkpoint(at(6), FIRST), VERIFIER, place="head")
    both = sign_checkpoint(at(6), SECOND).signed(*sign_checkpoint(at(6), FIRST).signatures)
    assert found.open(both, VERIFIER, place="head") == at(6)
    with pytest.raises(SignatureError, match="did not sign it"):
        found.open(sign_checkpoint(at(5), OTHER), VERIFIER, place="head")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE.text[:-1],
        ONE.text + "more\n",
        ONE.text.replace("rollover 1", "rollover 2"),
        ONE.text.replace("\n5\n", "\n05\n"),
        ONE.text.replace(f"\n{ORIGIN}\n5", "\nother/log\n5"),
        Rollover(at(5), key(FIRST), key(FIRST)).text,
        Rollover(at(5), key(FIRST), NoteKey(ORIGIN, SECOND.public_key, 4)).text,
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(PoloError):
        Rollover.parse(text, place="note")


@pytest.fixture(scope="module")
def found(vector):
    return vector("rollover")


def read(text):
    return Note.parse(text, place="vector")


def test_the_vectors(found):
    keys = tuple(NoteKey.parse(text, place="vector") for text in found["keys"])
    notes = [read(text) for text in found["notes"]]
    for known in keys:
        led = Lineage.of(known, notes, VERIFIER, place="vector")
        assert led.keys == keys
        for case in found["checkpoints"]:
            assert led.open(read(case["note"]), VERIFIER, place="x").size == case["size"]
        for text in found["refused_checkpoints"]:
            with pytest.raises(SignatureError):
                led.open(read(text), VERIFIER, place="x")
    for name, texts in found["refused_notes"].items():
        with pytest.raises(SignatureError):
            Lineage.of(keys[0], map(read, texts), VERIFIER, place=name)


def second(note):
    """Sizes and keys of a change, after section 19.8 and without any of the library."""
    text, lines = note[: note.rindex("\n\n") + 1], note[note.rindex("\n\n") + 2 :].splitlines()
    word, origin, size, _root, old, new, end = text.split("\n")
    assert (word, end) == ("polo rollover 1", "")
    signed = {}
    for line in lines:
        _, name, body = line.split(" ")
        data = base64.b64decode(body, validate=True)
        signed[name, data[:4].hex()] = data[4:]
    for key in (old, new):
        name, short, rest = key.split("+", 2)
        assert name == origin
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(rest)[1:])
        public.verify(signed[name, short], text.encode())
    return int(size), old, new


def test_a_second_reader_agrees(found):
    first, then = (second(note) for note in found["notes"])
    assert first == (5, *found["keys"][:2])
    assert then == (9, *found["keys"][1:])
    for name in ("signed by another key than the old one", "not signed by the new key"):
        with pytest.raises((KeyError, InvalidSignature)):
            second(found["refused_notes"][name][0])
