"""What terms say of a log: its name and key, who witnesses it, how fast shards may come.

Specification: docs/protocol.md, section 19.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from polo.errors import FormatError, TermsError
from polo.evidence.settings import Kind, Whole
from polo.protocol.detection import MILLION
from polo.protocol.log_notes import COSIGNATURE, ED25519, NoteKey
from polo.protocol.records import Terms

LEVEL = "receipts"
DAY = 24 * 3600
_LINE = re.compile(r"[\x21-\x2a\x2c-\x7e]{1,192}")


@dataclass(frozen=True)
class Origin:
    """The name of a log: printable characters, without spaces and `+`."""

    def read(self, text: str, place: str) -> str:
        """See `Kind`."""
        self.check(text, place)
        return text

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        if not isinstance(value, str) or not _LINE.fullmatch(value):
            raise TermsError(f"{str(value)[:40]!r} is no name of a log", place=place)

    def write(self, value: str) -> str:
        """See `Kind`."""
        return value


@dataclass(frozen=True)
class Keys:
    """Keys of one kind for notes, with a comma between."""

    kind: int
    most: int

    def read(self, text: str, place: str) -> tuple[NoteKey, ...]:
        """See `Kind`."""
        try:
            keys = tuple(NoteKey.parse(part, place=place) for part in text.split(","))
        except FormatError as error:
            raise TermsError(error.message, place=place) from error
        self.check(keys, place)
        return keys

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        if not 1 <= len(value) <= self.most:
            raise TermsError(f"{len(value)} keys; at least 1, at most {self.most}", place=place)
        if any(key.kind != self.kind for key in value):
            raise TermsError("a key of another kind", place=place)
        if len({key.public_key for key in value}) < len(value):
            raise TermsError("one key twice", place=place)

    def write(self, value: tuple[NoteKey, ...]) -> str:
        """See `Kind`."""
        return ",".join(key.text for key in value)


KINDS: Mapping[str, Kind] = {
    "origin": Origin(),
    "log": Keys(ED25519, 1),
    "witnesses": Keys(COSIGNATURE, 4),
    "quorum": Whole(1, 4),
    "fastest": Whole(0, 30 * DAY),
    "checkpoints": Whole(0, MILLION),
    "replays": Whole(0, MILLION),
    "answer_within": Whole(1, 30 * DAY),
    "keep": Whole(0, 36_500),
}
"""Form and bounds of every setting."""


@dataclass(frozen=True)
class Rules:
    """The settings of level receipts.

    Attributes:
        origin: Name of the log.
        log: Its key.
        witnesses: Keys of those who watch the log.
        quorum: How many of them must have seen an entry; by default all.
        fastest: Fewest seconds between two commitments.
        checkpoints: Millionths of shards whose whole checkpoint the registry draws.
        replays: Millionths of shards of which it draws steps to run again.
        answer_within: Seconds to answer what it draws.
        keep: Days after the chain's end, or after its last verdict, that the registry keeps what
            was uploaded; None if it promises nothing.
    """

    origin: str
    log: NoteKey
    witnesses: tuple[NoteKey, ...] = ()
    quorum: int = 0
    fastest: int = 0
    checkpoints: int = 0
    replays: int = 0
    answer_within: int = DAY
    keep: int | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], place: str = LEVEL) -> Self:
        """The rules in the settings of the level; `origin` and `log` must be there.

        Args:
            settings: The settings.
            place: Where they stand, for errors.
        """
        if unknown := settings.keys() - KINDS.keys():
            raise TermsError(
                "level receipts has no such setting",
                place=f"{place}.{min(unknown)}",
                advice=f"It has {', '.join(KINDS)}.",
            )
        if missing := {"origin", "log"} - settings.keys():
            raise TermsError("level receipts needs this setting", place=f"{place}.{min(missing)}")
        found = {key: KINDS[key].read(text, f"{place}.{key}") for key, text in settings.items()}
        (found["log"],) = found["log"]
        found.setdefault("quorum", len(found.get("witnesses", ())))
        rules = cls(**found)
        rules.check(place)
        return rules

    @classmethod
    def of(cls, terms: Terms, issuer: bytes) -> Self:
        """The rules in terms, refused where a witness is the issuer itself."""
        place = f"terms.evidence.{LEVEL}"
        settings = next(item.settings for item in terms.evidence if item.level == LEVEL)
        rules = cls.from_settings(settings, place)
        if issuer in {key.public_key for key in rules.witnesses}:
            raise TermsError("the issuer cannot be its own witness", place=f"{place}.witnesses")
        return rules

    def check(self, place: str = LEVEL) -> None:
        """Refuse rules that contradict themselves."""
        if self.quorum > len(self.witnesses):
            raise TermsError(
                f"{self.quorum} of {len(self.witnesses)} witnesses", place=f"{place}.quorum"
            )
        if self.log.public_key in {key.public_key for key in self.witnesses}:
            raise TermsError("the log cannot be its own witness", place=f"{place}.witnesses")

    def to_settings(self) -> dict[str, str]:
        """The settings that say this, without witnesses where there are none."""
        values: dict[str, Any] = {key: getattr(self, key) for key in KINDS}
        values["log"] = (self.log,)
        if not self.witnesses:
            del values["witnesses"], values["quorum"]
        if self.keep is None:
            del values["keep"]
        return {key: KINDS[key].write(value) for key, value in values.items()}


def replays(terms: Terms) -> int:
    """Millionths of the shards from which a registry draws steps while the chain grows."""
    settings = {item.level: item.settings for item in terms.evidence}
    if terms.history != "streaming" or "replay" not in settings:
        return 0
    text = settings.get(LEVEL, {}).get("replays", "0")
    return int(KINDS["replays"].read(text, f"terms.evidence.{LEVEL}.replays"))
