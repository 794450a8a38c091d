"""Changing inputs: blindly, or as the JSON trees that they hold."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 7, 8, 16, 31, 32, 255, 256, 10_000, 10_001, 65_535, 100_000, 1_000_000, 2**31,
    2**32, 2**48, 2**48 + 1, 2**53 - 1, 2**53, -(2**53), 2**63 - 1, 2**63, 2**64, 10**40, 10**4000,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, "", "a", "chain", "00" * 32, "00" * 64, "__metadata__", "F32",
    "../x", "/etc/passwd", "C:\\x", "a\x00b", "\ud800", "\ufeff", "x" * 600, 0.5, -0.0,
    float("nan"), float("inf"), 1e308, "layout.json", "checkpoints/000001.safetensors", "$tensor",
    "\u202e",
)  # fmt: skip
BYTES = (
    b"\x00",
    b"\xff",
    b"{",
    b"[",
    b'"',
    b",",
    b"-",
    b"9" * 20,
    b"\x00" * 8,
    b"\xff" * 8,
    b"../",
)


def raw(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, put in, taken out or repeated."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 64, 512)))
        fresh = rng.choice(
            (b"", data[at:to] * 2, rng.randbytes(to - at), rng.choice(BYTES), _flipped(data[at:to]))
        )
        data = data[:at] + fresh + data[to:]
    return data


def _flipped(data: bytes) -> bytes:
    return bytes(byte ^ 1 << at % 8 for at, byte in enumerate(data))


def document(data: bytes, rng: random.Random) -> bytes:
    """A JSON document with its tree changed, spelled canonically as far as that is possible.

    Raises:
        ValueError: It is no JSON.
    """
    if not rng.randrange(8):
        return raw(data, rng)
    return spell(tree(json.loads(data), rng))


def spell(value: Any) -> bytes:
    """Canonical JSON, but for what has no canonical form, which is spelled all the same."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def tree(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with one to three of its nodes changed."""
    holder = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        spots = _spots(holder)
        rng.choice(_CHANGES)(*rng.choice(spots), spots, rng)
        if not holder:
            return None
    return holder[0]


def _spots(container: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree that holds a value, as its container and key."""
    found: list[tuple[Any, Any]] = []
    waiting = [container]
    while waiting:
        inner = waiting.pop()
        for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
            found.append((inner, key))
            if isinstance(inner[key], (dict, list)):
                waiting.append(inner[key])
    return found


Change = Callable[[Any, Any, list[tuple[Any, Any]], random.Random], None]


def _replace(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    container[key] = rng.choice(rng.choice((NUMBERS, OTHERS)))


def _nudge(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    value = container[key]
    if isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int):
        # Python writes no integer of more than 4300 digits.
        container[key] = value % 10**4000 + rng.choice((-1, 1, value % 10**9, -value % 2**33))
    elif isinstance(value, str) and value:
        at = rng.randrange(len(value))
        fresh = rng.choice("0123456789abcdefz./_\u00e9\U0001f600")
        container[key] = value[:at] + fresh + value[at + 1 :]
    else:
        _replace(container, key, spots, rng)


def _borrow(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    other, at = rng.choice(spots)
    # A copy: a tree that contains itself could not be written.
    container[key] = copy.deepcopy(other[at])


def _remove(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    del container[key]


def _repeat(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    if isinstance(container, list):
        times = rng.choice((1, 1, 1, 8, 64))
        container[key:key] = [copy.deepcopy(container[key]) for _ in range(times)]
    else:
        container[f"{key}{rng.choice('0x')}"] = copy.deepcopy(container[key])


def _rename(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    if isinstance(container, dict):
        name = rng.choice([value for value in OTHERS if isinstance(value, str)])
        container[name] = container.pop(key)
    else:
        rng.shuffle(container)


def _wrap(container: Any, key: Any, spots: list[tuple[Any, Any]], rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 15, 17))):
        container[key] = [container[key]]


_CHANGES: tuple[Change, ...] = (
    _replace, _replace, _nudge, _nudge, _nudge, _borrow, _remove, _repeat, _rename, _wrap,
)  # fmt: skip
