"""A delta between two checkpoints: pieces of compressed bytes."""

import io
import json
import random
import struct
from collections.abc import Iterator

import numpy as np
import zstandard

from fuzz import mutation, promises, sandbox
from fuzz.target import Target
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.storage import delta
from polo.weights.checkpoint import MemoryCheckpoint
from polo.weights.files import header_of

_HEADER = 264
_RNG = np.random.default_rng(0)
_NEWER = MemoryCheckpoint(
    {
        "a": _RNG.standard_normal((40, 8)).astype(np.float32),
        "b": np.arange(30, dtype=np.int64),
        "c": np.ones(7, dtype=np.uint8),
    }
)
LAYOUT = Layout(
    CHUNK_BYTES, tuple(Tensor(t.name, t.dtype, t.shape) for t in _NEWER.layout.tensors), ()
)


def check(data: bytes) -> None:
    """Refused, or a whole checkpoint comes out, never a byte more."""
    out = io.BytesIO()
    path = sandbox.file(data)
    most = len(header_of(LAYOUT)) + LAYOUT.size

    def write(piece: bytes) -> None:
        out.write(piece)
        promises.require(out.tell() <= most, "no more comes out than a checkpoint has")

    with promises.refusals():
        delta.apply_delta(path, _NEWER, write, place="input")
        promises.require(out.tell() == most, "a whole checkpoint comes out")


def files() -> Iterator[bytes]:
    """A delta to other weights, and one to the same."""
    older = {
        "a": _RNG.standard_normal((40, 8)).astype(np.float32),
        "b": np.zeros(30, dtype=np.int64),
        "c": np.zeros(7, dtype=np.uint8),
    }
    for state in (MemoryCheckpoint(older), _NEWER):
        file = io.BytesIO()
        delta.write_delta(state, _NEWER, file)
        yield file.getvalue()


def pack(pieces: list[bytes]) -> bytes:
    """A delta of these frames, with the header that they need."""
    lengths = struct.pack(f"<{len(pieces)}I", *map(len, pieces))
    body = b"".join(pieces)
    ends = len(lengths), len(lengths) + len(body)
    header = {
        "lengths": {"dtype": "U32", "shape": [len(pieces)], "data_offsets": [0, ends[0]]},
        "pieces": {"dtype": "U8", "shape": [len(body)], "data_offsets": list(ends)},
    }
    text = json.dumps(header, separators=(",", ":")).encode().ljust(_HEADER - 8)
    return struct.pack("<Q", len(text)) + text + lengths + body


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One frame is changed or made anew, and everything around it made to fit."""
    count = len(LAYOUT.tensors)
    lengths = data[_HEADER : _HEADER + 4 * count]
    if not rng.randrange(5) or len(lengths) < 4 * count:
        return mutation.raw(data, rng)
    pieces, at = [], _HEADER + 4 * count
    for length in struct.unpack(f"<{count}I", lengths):
        pieces.append(data[at : at + length])
        at += length
    which = rng.randrange(count)
    if rng.randrange(2):
        pieces[which] = mutation.raw(pieces[which], rng)
    else:
        pieces[which] = _frame(rng)
    return pack(pieces)


def _frame(rng: random.Random) -> bytes:
    """A frame of some size that may or may not say how large it is, and of what window."""
    size = rng.choice((*(tensor.size for tensor in LAYOUT.tensors), 0, 1, 2**20, 2**20 + 1, 2**24))
    parameters = zstandard.ZstdCompressionParameters(
        compression_level=1,
        window_log=rng.choice((10, 20, 21, 22, 27)),
        write_content_size=rng.random() < 0.7,
        write_checksum=rng.random() < 0.5,
    )
    return bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(size)))


TARGET = Target(check, files, mutate)
