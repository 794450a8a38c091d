"""The samples of drawn steps, and the public record of data."""

import functools
import random
from collections.abc import Iterator

import numpy as np

from fuzz import mutation, promises, safetensors_files, sandbox
from fuzz.target import Target
from polo.evidence.replay.data import DataSource, load_record
from polo.evidence.replay.samples import check_opening, encode_opening, load_opening

WANTED = np.array([1, 4, 5, 11])


@functools.cache
def source() -> DataSource:
    """Fourteen samples of three columns."""
    drawing = np.random.default_rng(0)
    columns = {
        "image": drawing.random((14, 2, 3), dtype=np.float32),
        "label": drawing.integers(0, 10, 14),
        "seen": drawing.random((14, 3)) < 0.5,
    }
    return DataSource(columns, bytes(32))


@functools.cache
def shown() -> bytes:
    """The one file that shows the wanted samples."""
    return encode_opening(source().open(WANTED))


def check(data: bytes) -> None:
    """Refused, or what was committed to: nothing else leads to the root."""
    path, data_of = sandbox.file(data), source()
    with promises.refusals():
        record = load_record(path)
        promises.require(record.to_bytes() == data, "a record has one spelling")
    with promises.refusals():
        count, columns = data_of.samples, data_of.columns
        opening = load_opening(path, columns, WANTED, samples=count, place="input")
        promises.require(encode_opening(opening) == data, "an opening has one spelling")
        promises.require(len(opening.contents) == len(WANTED), "every sample has a content")
        check_opening(opening, WANTED, data_of.root, count, columns, place="input")
        promises.require(data == shown(), "one opening leads to the root")


def files() -> Iterator[bytes]:
    """Samples that are shown, and a record."""
    yield shown()
    yield source().record.to_bytes()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Mostly the header or the bytes behind it; of a record, its tree."""
    if data[:1] == b"{":
        return mutation.document(data, rng)
    if rng.randrange(3):
        return safetensors_files.mutate(data, rng)
    changed = bytearray(data)
    start = 8 + int.from_bytes(data[:8], "little")
    changed[rng.randrange(min(start, len(data) - 1), len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


TARGET = Target(check, files, mutate)
