"""A log's change of key: what the old and the new key sign about it, and how a reader follows.

A log is known by its name and its key. When another key takes over, both sign a note that names
them and says where the log stood. Who knows one of the keys learns of the others by these notes,
and of no key that the one before did not name.

Specification: docs/protocol.md, section 19.8.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from polo.errors import FormatError, LimitError, SignatureError
from polo.protocol.log_notes import (
    ED25519,
    Checkpoint,
    Note,
    NoteKey,
    NoteSignature,
    open_checkpoint,
)
from polo.protocol.signing import SignatureVerifier, Signer

MAX_ROLLOVERS = 64
_WORD = "polo rollover 1"
_FORM = re.compile(rf"{_WORD}\n([^\n]+\n[^\n]+\n[^\n]+\n)([^\n]+)\n([^\n]+)\n")


@dataclass(frozen=True)
class Rollover:
    """That one key of a log took over from another.

    Attributes:
        at: Where the log stood: its name, size and root.
        old: The key that signed checkpoints up to this size.
        new: The key that signs every larger one.
    """

    at: Checkpoint
    old: NoteKey
    new: NoteKey

    @property
    def text(self) -> str:
        """The text of the note."""
        return f"{_WORD}\n{self.at.text}{self.old.text}\n{self.new.text}\n"

    @classmethod
    def parse(cls, text: str, *, place: str) -> Self:
        """The rollover in the text of a note."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise FormatError("is no change of a log's key", place=place)
        at = Checkpoint.parse(found[1], place=place)
        old, new = (NoteKey.parse(found[number], place=place) for number in (2, 3))
        if {old.name, new.name} != {at.origin} or {old.kind, new.kind} != {ED25519} or old == new:
            raise FormatError("the keys are not two keys of one log", place=place)
        return cls(at, old, new)


def sign_rollover(at: Checkpoint, old: Signer, new: Signer) -> Note:
    """The note in which a log's key hands over to another; both sign it."""
    keys = [NoteKey(at.origin, signer.public_key) for signer in (old, new)]
    text = Rollover(at, *keys).text
    signatures = [
        NoteSignature(key.name, key.id, signer.sign(text.encode()))
        for key, signer in zip(keys, (old, new), strict=True)
    ]
    return Note(text, tuple(signatures))


def open_rollover(note: Note, verifier: SignatureVerifier, *, place: str) -> Rollover:
    """The rollover in a note, refused unless both keys that it names signed it."""
    found = Rollover.parse(note.text, place=place)
    for key, which in ((found.old, "is replaced"), (found.new, "takes over")):
        own = note.by(key)
        if not own or not all(
            verifier.verify(key.public_key, note.text.encode(), item.signature) for item in own
        ):
            message = f"a change of the log's key that the key which {which} did not sign"
            raise SignatureError(message, place=place)
    return found


@dataclass(frozen=True)
class Lineage:
    """The keys that a log has had, one after the other.

    Attributes:
        keys: All of them, the first one first.
        rollovers: What leads from each to the next.
    """

    keys: tuple[NoteKey, ...]
    rollovers: tuple[Rollover, ...] = ()

    @classmethod
    def of(
        cls, key: NoteKey, notes: Iterable[Note], verifier: SignatureVerifier, *, place: str
    ) -> Self:
        """Every key that a known one leads to, later and earlier.

        Args:
            key: The key that is known.
            notes: What the log shows of its changes, in any order.
            verifier: Checks signatures.
            place: What to name in errors.

        Raises:
            SignatureError: A change was not signed by its keys, or one key has two successors.
        """
        later: dict[NoteKey, Rollover] = {}
        earlier: dict[NoteKey, Rollover] = {}
        for count, note in enumerate(notes):
            if count >= MAX_ROLLOVERS:
                raise LimitError(f"more than {MAX_ROLLOVERS} changes of a key", place=place)
            found = open_rollover(note, verifier, place=place)
            if (
                later.setdefault(found.old, found) != found
                or earlier.setdefault(found.new, found) != found
            ):
                raise SignatureError("two keys took over from one, or one from two", place=place)
        before = list(_walk(key, earlier, forward=False))
        changes = (*reversed(before), *_walk(key, later, forward=True))
        keys = (changes[0].old if changes else key, *(item.new for item in changes))
        for old, new in itertools.pairwise(changes):
            if new.at.size < old.at.size:
                raise SignatureError("a key took over before the one before it", place=place)
        return cls(keys, changes)

    @property
    def newest(self) -> NoteKey:
        """The key that signs now."""
        return self.keys[-1]

    def open(self, note: Note, verifier: SignatureVerifier, *, place: str) -> Checkpoint:
        """A checkpoint, refused unless the key signed it that was the log's at that size."""
        for at in reversed(range(len(self.keys))):
            if note.by(self.keys[at]):
                found = open_checkpoint(note, self.keys[at], verifier, place=place)
                if at < len(self.rollovers) and found.size > self.rollovers[at].at.size:
                    message = "a key signed it that another had taken over from"
                    raise SignatureError(message, place=place)
                return found
        raise SignatureError(
            f"the log's key {self.newest.name[:80]} did not sign it, nor one that it leads to",
            place=place,
        )


def _walk(
    key: NoteKey, changes: Mapping[NoteKey, Rollover], *, forward: bool
) -> Iterable[Rollover]:
    seen = {key}
    while (found := changes.get(key)) is not None:
        key = found.new if forward else found.old
        if key in seen:
            raise SignatureError("keys of a log took over in a circle", place="log")
        seen.add(key)
        yield found
