"""Changing safetensors files so that their headers still fit their data, or nearly."""

import json
import math
import random
import struct
from typing import Any

from fuzz import mutation
from polo.protocol.layout import DTYPE_BYTES

_MOST_DATA = 4096


def pack(header: Any, data: bytes) -> bytes:
    """A safetensors file of a header, sensible or not, and data."""
    text = mutation.spell(header)
    return struct.pack("<Q", len(text)) + text + data


def split(data: bytes) -> tuple[Any, bytes]:
    """Header and data of a file; a ValueError if the header is no JSON."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The header's tree is changed, and its length; most times the offsets are made to fit."""
    header, body = split(data)
    kind = rng.randrange(8)
    if kind == 0:
        return mutation.raw(data, rng)
    if kind == 1:
        return pack(header, mutation.raw(body, rng))
    header = mutation.tree(header, rng)
    if kind > 4:
        body = _fit(header, body)
    return pack(header, body)


def _fit(header: Any, body: bytes) -> bytes:
    """Lay the tensors out one after the other, and make the data as long as they are."""
    end = 0
    for entry in header.values() if isinstance(header, dict) else ():
        if not isinstance(entry, dict) or not {"dtype", "shape"} <= set(entry):
            continue
        shape, dtype = entry["shape"], entry["dtype"]
        if isinstance(shape, list) and all(type(n) is int for n in shape):
            width = DTYPE_BYTES.get(dtype, 1) if isinstance(dtype, str) else 1
            start, end = end, end + math.prod(shape) * width
            entry["data_offsets"] = [start, end]
    most = min(max(end, 0), _MOST_DATA)
    return body[:most].ljust(most, b"\0")
