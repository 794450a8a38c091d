"""Settings of a level of evidence: text in the terms, numbers in the code.

Terms hold no floats, so a level's settings are strings. Each kind here reads one form of text
within bounds and writes it back; errors name the place and so the key.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from polo.errors import TermsError

_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]{1,3})?")


class Kind(Protocol):
    """One form of a setting."""

    def read(self, text: str, place: str) -> Any:
        """The value, or a TermsError that names the place."""

    def check(self, value: Any, place: str) -> None:
        """Refuse a value that is out of bounds or of another type."""

    def write(self, value: Any) -> str:
        """The value as text."""


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds, both included."""

    least: int
    most: int

    def read(self, text: str, place: str) -> int:
        """See `Kind`."""
        if not _WHOLE.fullmatch(text):
            raise TermsError(f"{text[:40]!r} is no whole number", place=place)
        self.check(int(text), place)
        return int(text)

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise TermsError(
                f"{value!r} is no whole number from {self.least} to {self.most}", place=place
            )

    def write(self, value: int) -> str:
        """See `Kind`."""
        return str(value)


@dataclass(frozen=True)
class Decimal:
    """A decimal number, not below `least` and below `end`; `positive` leaves zero out, too."""

    end: float
    least: float = 0.0
    positive: bool = False

    def read(self, text: str, place: str) -> float:
        """See `Kind`; the nearest double."""
        if not _DECIMAL.fullmatch(text):
            raise TermsError(f"{text[:40]!r} is no decimal number", place=place)
        self.check(float(text), place)
        return float(text)

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = number and math.isfinite(value) and self.least <= value < self.end
        if not fits or (self.positive and not value):
            least = "above" if self.positive else "from"
            bounds = f"{least} {self.least:g} to below {self.end:g}"
            raise TermsError(f"{value!r} is no number {bounds}", place=place)

    def write(self, value: float) -> str:
        """See `Kind`; the shortest text that reads as the same double."""
        return repr(float(value))


@dataclass(frozen=True)
class Flag:
    """`true` or `false`."""

    def read(self, text: str, place: str) -> bool:
        """See `Kind`."""
        if text not in ("true", "false"):
            raise TermsError(f"{text[:40]!r} is neither true nor false", place=place)
        return text == "true"

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        if type(value) is not bool:
            raise TermsError(f"{value!r} is neither true nor false", place=place)

    def write(self, value: bool) -> str:
        """See `Kind`."""
        return "true" if value else "false"


@dataclass(frozen=True)
class Word:
    """One of a few words, or any word where none are given."""

    words: tuple[str, ...] = ()

    def read(self, text: str, place: str) -> str:
        """See `Kind`."""
        self.check(text, place)
        return text

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        if self.words and value not in self.words:
            raise TermsError(f"{str(value)[:40]!r} is none of {', '.join(self.words)}", place=place)
        if not isinstance(value, str) or not re.fullmatch(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value
        ):
            raise TermsError(f"{str(value)[:40]!r} is no word", place=place)

    def write(self, value: str) -> str:
        """See `Kind`."""
        return value


@dataclass(frozen=True)
class Several:
    """Values of one kind with a space between, `least` to `most` of them."""

    item: Kind
    least: int
    most: int

    def read(self, text: str, place: str) -> tuple[Any, ...]:
        """See `Kind`."""
        values = tuple(self.item.read(part, place) for part in text.split(" "))
        self.check(values, place)
        return values

    def check(self, value: Any, place: str) -> None:
        """See `Kind`."""
        if not isinstance(value, tuple) or not self.least <= len(value) <= self.most:
            counts = f"{self.least} to {self.most}" if self.least < self.most else str(self.most)
            raise TermsError(f"{str(value)[:40]} are not {counts} values", place=place)
        for item in value:
            self.item.check(item, place)

    def write(self, value: tuple[Any, ...]) -> str:
        """See `Kind`."""
        return " ".join(self.item.write(item) for item in value)
