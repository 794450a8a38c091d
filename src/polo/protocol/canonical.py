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
    # Python's own order of keys is that of UTF-16 code units as long as all keys are ASCII.
    plain = _check(value, 0)
    text = json.dumps(
        value if plain else _ordered(value),
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        sort_keys=plain,
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


def _check(value: Any, depth: int) -> bool:
    """Refuse what has no place in a record; whether all keys are ASCII."""
    named = isinstance(value, dict)
    if not named and not isinstance(value, (list, tuple)):
        _check_scalar(value)
        return True
    if depth >= MAX_DEPTH and value:
        raise LimitError(f"nested deeper than {MAX_DEPTH}")
    plain = not named or _ascii_keys(value)
    for item in value.values() if named else value:
        # Strings and small numbers are what records hold most of; a call for each takes long.
        kind = type(item)
        if kind is not str and not (kind is int and abs(item) <= MAX_SAFE_INTEGER):
            plain &= _check(item, depth + 1)
    return plain


def _check_scalar(value: Any) -> None:
    if isinstance(value, int):
        if not isinstance(value, bool) and abs(value) > MAX_SAFE_INTEGER:
            raise FormatError("an integer is outside ±(2^53 − 1)")
    elif value is not None and not isinstance(value, str):
        raise FormatError(f"a {type(value).__name__} has no place in a record")


def _ascii_keys(value: dict[Any, Any]) -> bool:
    try:
        return "".join(value).isascii()
    except TypeError as error:
        raise FormatError("a key is not a string") from error


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return {key: _ordered(value[key]) for key in keys}
    if isinstance(value, (list, tuple)):
        return [_ordered(item) for item in value]
    return value


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:32]} is not an integer")


def _first_difference(one: bytes, other: bytes) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
