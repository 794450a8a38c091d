"""Signed notes: checkpoints of a log, and what witnesses add to them.

The forms are those of C2SP: signed-note, tlog-checkpoint and tlog-cosignature, with Ed25519.

Specification: docs/protocol.md, section 19.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from polo.errors import FormatError, LimitError, SignatureError
from polo.protocol.entries import MAX_CHECKPOINT
from polo.protocol.log_tree import MAX_SIZE
from polo.protocol.signing import SignatureVerifier, Signer

ED25519 = 1
COSIGNATURE = 4
"""Kinds of keys, as C2SP numbers them: one signs notes, the other what a witness saw and when."""

MAX_SIGNATURES = 64
MAX_TIME = 2**63 - 1
_DASH = "\N{EM DASH} "
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f]{1,192}")
_KEY = re.compile(r"([^+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]{1,100})")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")


@dataclass(frozen=True)
class NoteKey:
    """A public key for notes, with the name it goes by.

    Attributes:
        name: The name: by custom an address without its scheme.
        public_key: The raw Ed25519 key.
        kind: `ED25519` for a log's key, `COSIGNATURE` for that of a witness.
    """

    name: str
    public_key: bytes
    kind: int = ED25519

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise FormatError(f"{self.name[:80]!r} is no name of a key", place="key")
        if len(self.public_key) != 32 or self.kind not in (ED25519, COSIGNATURE):
            raise FormatError("only Ed25519 keys of logs and witnesses are known", place="key")

    @property
    def id(self) -> bytes:
        """Four bytes that stand for the key beside its name."""
        body = self.name.encode() + b"\n" + bytes([self.kind]) + self.public_key
        return hashlib.sha256(body).digest()[:4]

    @property
    def text(self) -> str:
        """The key as C2SP writes it: name, id, and kind with key, joined by `+`."""
        body = _encoded(bytes([self.kind]) + self.public_key)
        return f"{self.name}+{self.id.hex()}+{body}"

    @classmethod
    def parse(cls, text: str, *, place: str) -> Self:
        """The key in a text."""
        found = _KEY.fullmatch(text[:512])
        if found is None or len(text) > 512:
            message = "is no key of the form name+id+key"
            raise FormatError(message, place=place)
        body = _decoded(found[3], place)
        try:
            key = cls(found[1], body[1:], body[0])
        except FormatError as error:
            raise FormatError(error.message, place=place) from error
        if key.id.hex() != found[2]:
            raise FormatError("the id is not that of the key", place=place)
        return key


@dataclass(frozen=True)
class NoteSignature:
    """One line of signature: whose it says it is, and the bytes after the key's id."""

    name: str
    id: bytes
    signature: bytes

    @property
    def line(self) -> str:
        """The line, with its newline."""
        return f"{_DASH}{self.name} {_encoded(self.id + self.signature)}\n"

    @classmethod
    def parse(cls, line: str, *, place: str) -> Self:
        """The signature in a line without its newline."""
        name, _, body = line.removeprefix(_DASH).partition(" ")
        if not line.startswith(_DASH) or not _NAME.fullmatch(name):
            raise FormatError("a line of signature is not of the form", place=place)
        data = _decoded(body, place)
        if len(data) < 5:
            raise FormatError("a signature without bytes", place=place)
        return cls(name, data[:4], data[4:])

    def is_by(self, key: NoteKey) -> bool:
        """Whether it names this key; whether it holds is another question."""
        return (self.name, self.id) == (key.name, key.id)


@dataclass(frozen=True)
class Note:
    """A text with signatures.

    Attributes:
        text: The text, newline at its end included.
        signatures: Whoever signed, known or not.
    """

    text: str
    signatures: tuple[NoteSignature, ...]

    @classmethod
    def parse(cls, note: str, *, place: str) -> Self:
        """The note in its text form."""
        if len(note) > MAX_CHECKPOINT:
            raise LimitError(f"more than {MAX_CHECKPOINT} characters", place=place)
        if _CONTROL.search(note):
            raise FormatError("control characters in a note", place=place)
        text, blank, lines = note.rpartition("\n\n")
        if not blank or not text or not lines.endswith("\n"):
            raise FormatError("is no signed note", place=place)
        if lines.count("\n") > MAX_SIGNATURES:
            raise LimitError(f"more than {MAX_SIGNATURES} signatures", place=place)
        found = (NoteSignature.parse(line, place=place) for line in lines[:-1].split("\n"))
        return cls(f"{text}\n", tuple(found))

    def __str__(self) -> str:
        return f"{self.text}\n{''.join(item.line for item in self.signatures)}"

    def signed(self, *signatures: NoteSignature) -> "Note":
        """The note with further signatures; what is there already is not added twice."""
        return Note(self.text, tuple(dict.fromkeys((*self.signatures, *signatures))))

    def by(self, key: NoteKey) -> tuple[NoteSignature, ...]:
        """Signatures that name a key."""
        return tuple(item for item in self.signatures if item.is_by(key))


@dataclass(frozen=True)
class Checkpoint:
    """What a log signs: its name, how many entries it has, and their root."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text of the note."""
        return f"{self.origin}\n{self.size}\n{_encoded(self.root)}\n"

    @classmethod
    def parse(cls, text: str, *, place: str) -> Self:
        """The checkpoint in the text of a note; lines after the third are refused."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not lines[0]:
            raise FormatError("a checkpoint has three lines: origin, size, root", place=place)
        if not _DECIMAL.fullmatch(lines[1]) or int(lines[1]) > MAX_SIZE:
            raise FormatError(f"{lines[1][:40]!r} is no size of a log", place=place)
        root = _decoded(lines[2], place)
        if len(root) != 32:
            raise FormatError(f"a root of {len(root)} bytes", place=place)
        return cls(lines[0], int(lines[1]), root)


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> Note:
    """The checkpoint as a note that the log signed, under the name of its origin."""
    key = NoteKey(checkpoint.origin, signer.public_key)
    signature = NoteSignature(key.name, key.id, signer.sign(checkpoint.text.encode()))
    return Note(checkpoint.text, (signature,))


def open_checkpoint(
    note: Note, log: NoteKey, verifier: SignatureVerifier, *, origin: str | None = None, place: str
) -> Checkpoint:
    """The checkpoint in a note, refused unless the log's key signed it.

    Args:
        note: The note.
        log: The log's key.
        verifier: Checks signatures.
        origin: What the log must call itself; by default the key's name.
        place: What to name in errors.
    """
    own = note.by(log)
    if not own:
        raise SignatureError(f"the log's key {log.name[:80]} did not sign it", place=place)
    for item in own:
        if not verifier.verify(log.public_key, note.text.encode(), item.signature):
            raise SignatureError("the log's signature does not hold", place=place)
    checkpoint = Checkpoint.parse(note.text, place=place)
    if checkpoint.origin != (log.name if origin is None else origin):
        raise SignatureError(f"a checkpoint of {checkpoint.origin[:80]!r}", place=place)
    return checkpoint


def cosign(text: str, name: str, signer: Signer, time: int) -> NoteSignature:
    """What a witness adds to a checkpoint that goes on from the last one it saw.

    Args:
        text: The text of the note.
        name: The witness's name.
        signer: Holds its key.
        time: Seconds since 1970.
    """
    key = NoteKey(name, signer.public_key, COSIGNATURE)
    signature = signer.sign(_cosigned(text, time))
    return NoteSignature(key.name, key.id, time.to_bytes(8, "big") + signature)


def cosigned(
    note: Note, witnesses: Iterable[NoteKey], verifier: SignatureVerifier, *, place: str
) -> dict[NoteKey, int]:
    """Which of these witnesses cosigned a note, and when, each at its earliest.

    Raises:
        SignatureError: A line names a witness's key, and the witness did not sign it.
    """
    found: dict[NoteKey, int] = {}
    for witness in witnesses:
        for item in note.by(witness):
            time = int.from_bytes(item.signature[:8], "big")
            message = _cosigned(note.text, time)
            if (
                witness.kind != COSIGNATURE
                or time > MAX_TIME
                or not verifier.verify(witness.public_key, message, item.signature[8:])
            ):
                message_of = f"the cosignature of {witness.name[:80]} does not hold"
                raise SignatureError(message_of, place=place)
            found[witness] = min(time, found.get(witness, time))
    return found


def _cosigned(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str, place: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError("is not base64", place=place) from error
    # Spare bits at the end would give one signature several spellings.
    if _encoded(data) != text:
        raise FormatError("is not the one base64 of its bytes", place=place)
    return data
