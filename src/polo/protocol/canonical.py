"""Canonical JSON (RFC 8785) for records that hold no floats.

Without floats the rules are few: no white space, keys sorted by UTF-16 code units, the
shortest string escapes, integers within ±(2^53 − 1). `parse` accepts a document only if it
*equals* its own canonical bytes, which also refuses duplicate keys, odd escapes and spaces.

Specification: docs/protocol.md, section 2.
"""

import json
from typing import Any, NoReturn

from polo.errors import FormatError, LimitError

MAX_SAFE_INTEGER = 2**53 - 1
MAX_DOCUMENT_BYTES = 16 * 2**20
MAX_DEPTH = 16
MAX_VALUES = 1_500_000
"""Most commas and opening brackets: small values take far more memory than their bytes."""


def encode(value: Any) -> bytes:
    """Canonical bytes of a value made of dicts, lists, strings, integers, booleans, None."""
    text = json.dumps(
        _ordered(value, 0), ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError("a string holds a lone surrogate, which UTF-8 cannot carry") from error


def parse(data: bytes, *, place: str, limit: int = MAX_DOCUMENT_BYTES) -> Any:
    """The value in `data`, refused unless `data` is exactly its canonical encoding.

    Args:
        data: A whole document.
        place: What to call the document in errors, usually its path.
        limit: Most bytes accepted.
    """
    if len(data) > limit:
        raise LimitError(f"{len(data)} bytes; at most {limit} are read", place=place)
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise LimitError(f"more than {MAX_VALUES} values", place=place)
    try:
        value = json.loads(data.decode("utf-8"), parse_float=_no_float, parse_constant=_no_float)
        canonical = encode(value)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a JSON document without floats: {error}", place=place) from error
    except FormatError as error:
        raise FormatError(error.message, place=place) from error
    if canonical != data:
        at = _first_difference(canonical, data)
        raise FormatError(f"not in canonical form (RFC 8785), from byte {at} on", place=place)
    return value


def _ordered(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise LimitError(f"nested deeper than {MAX_DEPTH}")
    # Most values of a record are strings, so they come first.
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, dict):
        return {key: _ordered(value[key], depth + 1) for key in _sorted_keys(value)}
    if isinstance(value, (list, tuple)):
        return [_ordered(item, depth + 1) for item in value]
    if isinstance(value, int):
        if not isinstance(value, bool) and abs(value) > MAX_SAFE_INTEGER:
            raise FormatError("an integer is outside ±(2^53 − 1)")
        return value
    raise FormatError(f"a {type(value).__name__} has no place in a record")


def _sorted_keys(value: dict[Any, Any]) -> list[str]:
    try:
        plain = "".join(value).isascii()
    except TypeError as error:
        raise FormatError("a key is not a string") from error
    # Python's own order is that of UTF-16 code units as long as all characters are ASCII.
    return sorted(value, key=None if plain else _utf16)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:32]} is not an integer")


def _first_difference(one: bytes, other: bytes) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
