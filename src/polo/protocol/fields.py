"""The field types that records are made of, and the one way to read and write a record.

A record is a frozen dataclass whose fields carry a `Field`. Reading is strict: every field
must be there, nothing else may be, every value has its bounds. Errors name the path of the
field, as in `manifest.json: shards[3].root`.

Specification: docs/protocol.md, section 3.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from polo.errors import FormatError, LimitError
from polo.protocol import canonical

_HEX = re.compile("[0-9a-f]*")
_compiled = functools.cache(re.compile)


class Field(Protocol):
    """Reads one JSON value into a Python value, and back."""

    def read(self, value: Any, place: str) -> Any:
        """The Python value, or a FormatError that names the place."""

    def write(self, value: Any) -> Any:
        """The JSON value."""


@dataclasses.dataclass(frozen=True)
class Integer:
    """An integer within bounds, both included."""

    least: int
    most: int

    def read(self, value: Any, place: str) -> int:
        """See `Field`."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise FormatError(f"expected an integer from {self.least} to {self.most}", place=place)
        return value

    def write(self, value: int) -> int:
        """See `Field`."""
        return self.read(value, "record")


@dataclasses.dataclass(frozen=True)
class Boolean:
    """True or false."""

    def read(self, value: Any, place: str) -> bool:
        """See `Field`."""
        if type(value) is not bool:
            raise FormatError("expected true or false", place=place)
        return value

    def write(self, value: bool) -> bool:
        """See `Field`."""
        return value


@dataclasses.dataclass(frozen=True)
class Text:
    """A string of bounded length that matches a pattern as a whole."""

    most: int
    pattern: str = r"[^\x00-\x1f\x7f]*"

    def read(self, value: Any, place: str) -> str:
        """See `Field`."""
        if not isinstance(value, str) or len(value) > self.most:
            raise FormatError(f"expected a string of at most {self.most} characters", place=place)
        if not _compiled(self.pattern).fullmatch(value):
            raise FormatError(f"{value[:80]!r} is not of the form {self.pattern}", place=place)
        return value

    def write(self, value: str) -> str:
        """See `Field`."""
        return self.read(value, "record")


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Bytes of a fixed length, written as lower-case hexadecimal."""

    size: int

    def read(self, value: Any, place: str) -> bytes:
        """See `Field`."""
        wanted = 2 * self.size
        if not isinstance(value, str) or len(value) != wanted or not _HEX.fullmatch(value):
            raise FormatError(f"expected {2 * self.size} lower-case hex digits", place=place)
        return bytes.fromhex(value)

    def write(self, value: bytes) -> str:
        """See `Field`."""
        if len(value) != self.size:
            raise FormatError(f"expected {self.size} bytes, got {len(value)}", place="record")
        return value.hex()


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, value: Any, place: str) -> str:
        """See `Field`."""
        if not isinstance(value, str) or value not in self.words:
            raise FormatError(f"expected one of {', '.join(self.words)}", place=place)
        return value

    def write(self, value: str) -> str:
        """See `Field`."""
        return self.read(value, "record")


@dataclasses.dataclass(frozen=True)
class ListOf:
    """A list with a most length."""

    item: Field
    most: int

    def read(self, value: Any, place: str) -> tuple[Any, ...]:
        """See `Field`."""
        if not isinstance(value, list):
            raise FormatError("expected a list", place=place)
        if len(value) > self.most:
            raise LimitError(f"{len(value)} items; at most {self.most} are read", place=place)
        return tuple(self.item.read(item, f"{place}[{at}]") for at, item in enumerate(value))

    def write(self, value: tuple[Any, ...]) -> list[Any]:
        """See `Field`."""
        return [self.item.write(item) for item in value]


@dataclasses.dataclass(frozen=True)
class MapOf:
    """An object with free keys of one form."""

    key: Text
    item: Field
    most: int

    def read(self, value: Any, place: str) -> dict[str, Any]:
        """See `Field`."""
        if not isinstance(value, dict):
            raise FormatError("expected an object", place=place)
        if len(value) > self.most:
            raise LimitError(f"{len(value)} entries; at most {self.most} are read", place=place)
        return {
            self.key.read(key, place): self.item.read(item, f"{place}.{key[:80]}")
            for key, item in value.items()
        }

    def write(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """See `Field`."""
        return {self.key.write(key): self.item.write(item) for key, item in value.items()}


@dataclasses.dataclass(frozen=True)
class Nullable:
    """A value, or null where a later level of evidence will put one."""

    item: Field

    def read(self, value: Any, place: str) -> Any:
        """See `Field`."""
        return None if value is None else self.item.read(value, place)

    def write(self, value: Any) -> Any:
        """See `Field`."""
        return None if value is None else self.item.write(value)


def of(field: Field, **options: Any) -> Any:
    """A dataclass field that is read and written by `field`."""
    return dataclasses.field(metadata={"polo": field}, **options)


@dataclasses.dataclass(frozen=True)
class Nested:
    """Another record."""

    record: type["Record"]

    def read(self, value: Any, place: str) -> "Record":
        """See `Field`."""
        return self.record.from_json(value, place)

    def write(self, value: "Record") -> dict[str, Any]:
        """See `Field`."""
        return value.to_json()


_FIELDS: dict[type["Record"], dict[str, Field]] = {}
_NAMES: dict[type["Record"], frozenset[str]] = {}


def _fields(record: type["Record"]) -> dict[str, Field]:
    """The fields of a record by name; manifests hold hundreds of records of a few kinds."""
    if record not in _FIELDS:
        found = dataclasses.fields(record)  # type: ignore[arg-type]
        _FIELDS[record] = {field.name: field.metadata["polo"] for field in found}
    return _FIELDS[record]


def _names(record: type["Record"]) -> frozenset[str]:
    """The names that a record's JSON has."""
    if record not in _NAMES:
        _NAMES[record] = frozenset([*_fields(record), *(["format"] if record.FORMAT else [])])
    return _NAMES[record]


def _other_fields(value: dict[Any, Any], known: frozenset[str], place: str) -> FormatError:
    if unknown := value.keys() - known:
        # Not every object comes from JSON, where all names are strings.
        first = min(map(str, unknown))[:80]
        return FormatError(f"unknown field {first!r}", place=place)
    return FormatError(f"field {min(known - value.keys())!r} is missing", place=place)


class Record:
    """Base of all records; subclasses are frozen dataclasses.

    A subclass with a `FORMAT` stands alone as a document: its JSON carries that word, which
    names kind and version at once, and any other word is refused.
    """

    FORMAT: ClassVar[str] = ""

    @classmethod
    def from_json(cls, value: Any, place: str) -> Self:
        """The record in a parsed JSON value."""
        if not isinstance(value, dict):
            raise FormatError("expected an object", place=place)
        fields = _fields(cls)
        known = _names(cls)
        if cls.FORMAT and value.get("format") != cls.FORMAT:
            found = str(value.get("format"))[:80]
            raise FormatError(
                f"expected format {cls.FORMAT}, found {found!r}",
                place=place,
                advice="A newer format needs a newer release of PoLO.",
            )
        if value.keys() != known:
            raise _other_fields(value, known, place)
        inside = f"{place}." if ":" in place else f"{place}: "
        return cls(**{n: field.read(value[n], inside + n) for n, field in fields.items()})

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON value."""
        written: dict[str, Any] = {"format": self.FORMAT} if self.FORMAT else {}
        for name, field in _fields(type(self)).items():
            try:
                written[name] = field.write(getattr(self, name))
            except FormatError as error:
                if error.place == "record":
                    error.place = f"{type(self).__name__}.{name}"
                raise
        return written

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> Self:
        """The record in a canonical document."""
        return cls.from_json(canonical.parse(data, place=place), place)

    def to_bytes(self) -> bytes:
        """The record as a canonical document, refused if nobody could read it back."""
        data = canonical.encode(self.to_json())
        if len(data) > canonical.MAX_DOCUMENT_BYTES:
            raise LimitError(f"a {self.FORMAT} document of {len(data)} bytes")
        return data
