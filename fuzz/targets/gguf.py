"""A found model as a GGUF file."""

import random
import struct
from collections.abc import Iterator

from fuzz import found_models, mutation, sandbox
from fuzz.target import Target

_TYPES = (0, 1, 2, 3, 6, 8, 10, 12, 14, 16, 20, 24, 28, 30, 34, 39)
"""Numbers of some types: floats, blocks of all sizes, integers, one that is new."""

_COUNTS = (0, 1, 2, 31, 32, 33, 256, 2**16, 2**31, 2**32, 2**48, 2**62, 2**63, 2**64 - 1)


def check(data: bytes) -> None:
    """See `found_models`."""
    found_models.check(sandbox.file(data, "input.gguf"), len(data))


def text(value: bytes) -> bytes:
    """A string of the format."""
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    """A key and its value."""
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    """An entry of the list of tensors."""
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def pack(keys: list[bytes], tensors: list[bytes], data: bytes, version: int = 3) -> bytes:
    """A whole file; the data begins at the next multiple of 32 bytes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def files() -> Iterator[bytes]:
    """Small files of several types, with keys of every kind."""
    words = key(b"general.architecture", 8, text(b"llama"))
    nested = struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 8, 2) + text(b"a") + text(b"b")
    keys = [
        words,
        key(b"general.alignment", 4, struct.pack("<I", 32)),
        key(b"numbers", 9, struct.pack("<IQ3H", 2, 3, 1, 2, 3)),
        key(b"tokens", 9, nested),
        key(b"split.count", 2, struct.pack("<H", 2)),
        key(b"split.no", 2, struct.pack("<H", 0)),
    ]
    yield pack([], [tensor(b"a.weight", (4, 2), 0, 0)], bytes(32))
    yield pack(keys, [tensor(b"a", (32, 2), 8, 0), tensor(b"b", (256,), 12, 96)], bytes(96 + 144))
    for kind in _TYPES:
        yield pack([words], [tensor(b"blk.0.w", (256,), kind, 0)], bytes(2048))
    yield pack([], [tensor(b"empty", (0, 5), 0, 0)], b"", version=2)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Most times one number of the header becomes a telling one."""
    if not rng.randrange(4) or len(data) < 24:
        return mutation.raw(data, rng)
    if not rng.randrange(4):
        return rng.choice(list(files()))
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(4, max(5, min(len(data) - 8, 400)))
        if rng.randrange(2):
            struct.pack_into("<Q", changed, at, rng.choice(_COUNTS))
        else:
            struct.pack_into("<I", changed, at, rng.choice((*_TYPES, 5, 7, 9, 40, 2**32 - 1)))
    return bytes(changed)


TARGET = Target(check, files, mutate)
