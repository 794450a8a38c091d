"""A checkpoint of a proof: one header is the right one."""

import random
from collections.abc import Iterator

from fuzz import mutation, promises, safetensors_files, sandbox
from fuzz.target import Target
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.weights.files import FileCheckpoint, header_of
from polo.weights.hashing import commit

LAYOUT = Layout(
    CHUNK_BYTES,
    (
        Tensor("b", "BOOL", (3,)),
        Tensor("h", "BF16", (2, 2)),
        Tensor("n", "I64", ()),
        Tensor("w", "F32", (4, 3)),
        Tensor("z", "F8_E4M3", (5,)),
    ),
    (),
)


def check(data: bytes) -> None:
    """Refused, or exactly the header of the layout and as many bytes as it has."""
    path = sandbox.file(data)
    with promises.refusals(), FileCheckpoint.canonical(path, LAYOUT) as checkpoint:
        header = header_of(LAYOUT)
        promises.require(data.startswith(header), "there is one header")
        promises.require(len(data) == len(header) + LAYOUT.size, "there is one size")
        commit(checkpoint, threads=1)


def files() -> Iterator[bytes]:
    """A whole checkpoint."""
    yield header_of(LAYOUT) + bytes(LAYOUT.size)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Values behind an untouched header, or a changed header."""
    header = len(header_of(LAYOUT))
    if rng.randrange(3) and len(data) >= header:
        body = bytearray(data[header:])
        for _ in range(rng.randrange(1, 5)):
            if body:
                body[rng.randrange(len(body))] = rng.choice((0x7F, 0x80, 0xFF, 0, 1, 2, 0xF8))
        return data[:header] + bytes(body)
    return rng.choice((safetensors_files.mutate, mutation.raw))(data, rng)


TARGET = Target(check, files, mutate)
