"""The record of a shard: digests of the state every so many steps, and how far each move went.

A record is a safetensors file of three tensors. All about it but its values follows from the
number of segments, its size and its header too; a file that differs is refused unread.

Specification: docs/protocol.md, section 17.4.
"""

import functools
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polo.errors import FormatError, LimitError, TermsError
from polo.evidence.replay import platform
from polo.protocol.digest import SIZE, tagged
from polo.weights.files import open_plain

MAX_SEGMENTS = 2**20
MAX_MOVE = 2**63 - 1
_LABEL = "polo/replay-record/1"
_MOVE = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Boundary:
    """The state between two segments.

    Attributes:
        model: Digest of the model.
        rest: Digest of the optimizer's state.
    """

    model: bytes
    rest: bytes


@dataclass(frozen=True)
class Record:
    """What was recorded beside the training of one shard.

    Attributes:
        boundaries: The states before, between and after its segments.
        moves: Of each segment, how far the model moved and how far the rest did; of the sealing
            last, whose second figure is 0. Units of 2^-32; 2^63 - 1 stands for all beyond.
        platform: What the numbers depend on, as `platform.text_of` spells it.
    """

    boundaries: tuple[Boundary, ...]
    moves: tuple[tuple[int, int], ...]
    platform: str

    def __post_init__(self) -> None:
        if not self.boundaries or len(self.moves) != len(self.boundaries):
            raise FormatError("a record has as many moves as boundaries, the sealing's included")

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self.boundaries) - 1

    def encode(self) -> bytes:
        """The record as a file."""
        states = b"".join(each.model + each.rest for each in self.boundaries)
        moves = b"".join(_MOVE.pack(*pair) for pair in self.moves)
        text = platform.padded(self.platform)
        return _header(self.segments) + states + moves + text

    @functools.cached_property
    def digest(self) -> bytes:
        """What the shard's record names."""
        return digest_of(self.encode())


def digest_of(data: bytes) -> bytes:
    """What a shard names the file of a record by."""
    return tagged(_LABEL, data)


def size_of(segments: int) -> int:
    """Bytes of a record of so many segments."""
    return len(_header(segments)) + (segments + 1) * (2 * SIZE + _MOVE.size) + platform.SIZE


def load(path: Path, segments: int, place: str) -> Record:
    """Read the record of a shard.

    Args:
        path: The file.
        segments: How many segments the shard must have.
        place: What to call the file in errors.
    """
    body = _body(path, segments, place)
    ends = _ends(segments + 1)
    states = bytes(body[: ends[0]])
    boundaries = tuple(
        Boundary(states[at : at + SIZE], states[at + SIZE : at + 2 * SIZE])
        for at in range(0, ends[0], 2 * SIZE)
    )
    return Record(boundaries, *_moves_and_platform(body, segments + 1, place))


def load_moves(path: Path, segments: int, place: str) -> tuple[tuple[int, int], ...]:
    """Read the moves of a record alone, which takes a fraction of the time and memory.

    Args:
        path: The file.
        segments: How many segments the shard must have.
        place: What to call the file in errors.
    """
    return _moves_and_platform(_body(path, segments, place), segments + 1, place)[0]


def _body(path: Path, segments: int, place: str) -> memoryview:
    """What follows the header of a record, refused unless size and header are the right ones."""
    if not 0 <= segments <= MAX_SEGMENTS:
        raise LimitError(f"{segments} segments; at most {MAX_SEGMENTS}", place=place)
    header, size = _header(segments), size_of(segments)
    with open_plain(path) as file:
        found = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if found == size else b""
    if len(data) != size:
        raise FormatError(f"{found} bytes; a record of {segments} segments has {size}", place=place)
    if not data.startswith(header):
        raise FormatError("the header is not that of a record", place=place)
    return memoryview(data)[len(header) :]


def _ends(count: int) -> tuple[int, int]:
    """Where the states of a body end, and where its moves do."""
    return 2 * SIZE * count, (2 * SIZE + _MOVE.size) * count


def _moves_and_platform(
    body: memoryview, count: int, place: str
) -> tuple[tuple[tuple[int, int], ...], str]:
    states, end = _ends(count)
    moves = tuple((model, rest) for model, rest in _MOVE.iter_unpack(body[states:end]))
    for number, pair in enumerate(moves):
        if max(pair) > MAX_MOVE:
            raise FormatError(f"move {number} is above {MAX_MOVE}", place=place)
    if moves[-1][1]:
        raise FormatError("a sealing does not move the optimizer's state", place=place)
    return moves, platform.unpadded(bytes(body[end:]), place)


def segments_of(steps: int, every: int) -> int:
    """How many segments a shard of so many steps has.

    >>> segments_of(100, 16), segments_of(96, 16), segments_of(1, 16)
    (7, 6, 1)
    """
    if steps < 0 or every < 1:
        raise TermsError(f"{steps} steps, a record every {every}: neither can be")
    return -(-steps // every)


def span_of(segment: int, steps: int, every: int) -> tuple[int, int]:
    """A segment's first step, counted from 0 within its shard, and how many it has.

    >>> span_of(0, 100, 16), span_of(6, 100, 16)
    ((0, 16), (96, 4))
    """
    if not 0 <= segment < segments_of(steps, every):
        raise TermsError(f"a shard of {steps} steps has no segment {segment}")
    first = segment * every
    return first, min(every, steps - first)


def _header(segments: int) -> bytes:
    count = segments + 1
    entries: dict[str, Any] = {}
    end = 0
    for name, dtype, shape, size in (
        ("states", "U8", [count, 2 * SIZE], 2 * SIZE * count),
        ("moves", "U64", [count, 2], _MOVE.size * count),
        ("platform", "U8", [platform.SIZE], platform.SIZE),
    ):
        start, end = end, end + size
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
