"""Deltas: lossless for every type, and harmless whoever wrote them."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from safetensors import safe_open

from polo.errors import FormatError, PoloError
from polo.protocol.layout import DTYPE_BYTES
from polo.storage.delta import PIECE_BYTES, apply_delta, write_delta
from polo.storage.folder import ProofFolder
from polo.weights import FileCheckpoint, MemoryCheckpoint, checkpoint_of, commit
from polo.weights.checkpoint import Checkpoint
from polo.weights.files import write_checkpoint

HEADER = 264
TYPES = [
    torch.bool, torch.uint8, torch.int16, torch.uint32, torch.int64, torch.float8_e5m2,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def state_of(seed: int, elements: int = 96) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 0x70, (elements * 8,), generator=random, dtype=torch.uint8)
    state = {f"layer.{t}": (raw % 2 if t is torch.bool else raw).view(t) for t in TYPES}
    return {**state, "empty": torch.empty(0, 3), "scalar": raw[:4].view(torch.float32)[0].clone()}


def packed(path: Path, older: Checkpoint, newer: Checkpoint) -> Path:
    with path.open("wb") as file:
        write_delta(older, newer, file)
    return path


def canonical(checkpoint: Checkpoint) -> bytes:
    out = io.BytesIO()
    write_checkpoint(checkpoint, out.write)
    return out.getvalue()


def unpacked(path: Path, newer: Checkpoint) -> bytes:
    out = io.BytesIO()
    apply_delta(path, newer, out.write, place="delta")
    return out.getvalue()


def test_every_type_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    older, newer = MemoryCheckpoint(state_of(1)), MemoryCheckpoint(state_of(2))
    path = packed(tmp_path / "d.safetensors", older, newer)
    assert unpacked(path, newer) == canonical(older)
    # XOR undoes itself, so the delta leads both ways.
    assert unpacked(path, older) == canonical(newer)


@pytest.mark.parametrize("change", ["none", "one bit", "everything", "signs", "zeros"])
@pytest.mark.parametrize("elements", [1, 7, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1, 700_000])
def test_any_pair_of_any_size_comes_back(tmp_path: Path, elements: int, change: str) -> None:
    random = np.random.default_rng(elements)
    one = random.normal(size=elements).astype(np.float32)
    other = {
        "none": one,
        "one bit": (one.view(np.uint32) ^ (np.arange(elements) == elements // 2)).view(np.float32),
        "everything": random.normal(size=elements).astype(np.float32),
        "signs": -one,
        "zeros": np.zeros_like(one),
    }[change]
    older, newer = (MemoryCheckpoint({"w": v.astype(np.float32)}) for v in (one, other))
    path = packed(tmp_path / "d.safetensors", older, newer)
    assert unpacked(path, newer) == canonical(older)


def test_small_steps_of_training_shrink(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    one = random.normal(size=500_000).astype(np.float32)
    near = (one * (1 + 1e-4 * random.normal(size=len(one)))).astype(np.float32)
    older, newer = MemoryCheckpoint({"w": one}), MemoryCheckpoint({"w": near})
    size = packed(tmp_path / "d.safetensors", older, newer).stat().st_size
    assert size < 0.75 * one.nbytes
    same = packed(tmp_path / "e.safetensors", older, older).stat().st_size
    assert same < 2_000


def test_real_checkpoints_come_back(tmp_path: Path, make_proof: Callable[..., Any]) -> None:
    made = make_proof(epochs=3)
    folder = ProofFolder(made.path)
    layout = checkpoint_of(made.model).layout
    for number in range(made.proof.shards):
        with (
            folder.checkpoint(number, layout) as older,
            folder.checkpoint(number + 1, layout) as newer,
        ):
            path = packed(tmp_path / f"{number}.safetensors", older, newer)
            (tmp_path / "out").write_bytes(unpacked(path, newer))
            with FileCheckpoint.canonical(tmp_path / "out", layout) as found:
                assert commit(found).root == commit(older).root


def test_a_delta_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    older, newer = MemoryCheckpoint(state_of(1)), MemoryCheckpoint(state_of(2))
    path = packed(tmp_path / "d.safetensors", older, newer)
    with safe_open(path, framework="np") as file:
        lengths, pieces = file.get_tensor("lengths"), file.get_tensor("pieces")
    assert lengths.sum() == len(pieces)
    assert len(lengths) == len(TYPES) + 1  # nothing for the empty tensor


def test_a_delta_is_the_same_every_time(tmp_path: Path) -> None:
    older, newer = MemoryCheckpoint(state_of(1)), MemoryCheckpoint(state_of(2))
    one, other = (packed(tmp_path / name, older, newer).read_bytes() for name in "ab")
    assert one == other


# Hostile files. Two tensors of three pieces in all, whose bytes we can put together at will.

BIG = 2 * PIECE_BYTES // 4 - 1000
PAIR = (
    {"a": np.arange(BIG, dtype=np.float32), "b": np.ones(50, np.float32)},
    {"a": np.arange(BIG, dtype=np.float32) + 1, "b": np.zeros(50, np.float32)},
)
SIZES = [PIECE_BYTES, 4 * BIG - PIECE_BYTES, 200]


def assembled(path: Path, pieces: list[bytes], lengths: list[int] | None = None) -> Path:
    """A delta file with the right header for its size and whatever pieces."""
    from polo.storage.delta import _header

    lengths = lengths or [len(piece) for piece in pieces]
    body = b"".join(pieces)
    path.write_bytes(
        _header(len(lengths), len(body)) + struct.pack(f"<{len(lengths)}I", *lengths) + body
    )
    return path


@pytest.fixture
def parts(tmp_path: Path) -> tuple[list[bytes], Checkpoint]:
    older, newer = (MemoryCheckpoint(state) for state in PAIR)
    data = packed(tmp_path / "good.safetensors", older, newer).read_bytes()
    lengths = struct.unpack("<3I", data[HEADER : HEADER + 12])
    at, pieces = HEADER + 12, []
    for length in lengths:
        pieces.append(data[at : at + length])
        at += length
    assert assembled(tmp_path / "again.safetensors", pieces).read_bytes() == data
    return pieces, newer


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def frame_without_size(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return bytes(compressor.compress(data) + compressor.flush())


def declaring(piece: bytes, size: int) -> bytes:
    """A frame whose header claims another size than it holds."""
    magic = piece[:4]
    return magic + bytes([0xE0]) + struct.pack("<Q", size) + piece[-20:]


HOSTILE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no frame": lambda p: [b"hello", p[1], p[2]],
    "empty piece": lambda p: [b"", p[1], p[2]],
    "cut frame": lambda p: [p[0][:-3], p[1], p[2]],
    "frame with a tail": lambda p: [p[0] + b"tail", p[1], p[2]],
    "two frames": lambda p: [p[0] + p[2], p[1], p[2]],
    "skippable frame": lambda p: [b"\x50\x2a\x4d\x18\x04\0\0\0abcd", p[1], p[2]],
    "swapped pieces": lambda p: [p[1], p[0], p[2]],
    "shorter content": lambda p: [frame(bytes(SIZES[0] - 4)), p[1], p[2]],
    "longer content": lambda p: [frame(bytes(SIZES[0] + 4)), p[1], p[2]],
    "nothing inside": lambda p: [frame(b""), p[1], p[2]],
    "no declared size": lambda p: [frame_without_size(bytes(SIZES[0])), p[1], p[2]],
    "bomb": lambda p: [p[0], p[1], frame(bytes(2**28))],
    "declares an exabyte": lambda p: [declaring(p[0], 2**60), p[1], p[2]],
    "declares the right size but holds less": lambda p: [declaring(p[0], SIZES[0]), p[1], p[2]],
    "piece longer than it may be": lambda p: [p[0], p[1], p[2] + bytes(3 * PIECE_BYTES)],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pieces_are_refused(
    tmp_path: Path, parts: tuple[list[bytes], Checkpoint], kind: str
) -> None:
    pieces, newer = parts
    path = assembled(tmp_path / "bad.safetensors", HOSTILE[kind](pieces))
    with pytest.raises(FormatError):
        unpacked(path, newer)


def test_hostile_lengths_are_refused(tmp_path: Path, parts: tuple[list[bytes], Checkpoint]) -> None:
    pieces, newer = parts
    a, b, c = (len(piece) for piece in pieces)
    for lengths in (
        [a + 1, b - 1, c],
        [0, a + b, c],
        [2**32 - 1, b, c],
        [a, b, c - 1],
        [a + b + c, 0, 0],
    ):
        path = assembled(tmp_path / "bad.safetensors", pieces, lengths)
        with pytest.raises(FormatError):
            unpacked(path, newer)


def test_bytes_after_the_last_piece_are_refused(
    tmp_path: Path, parts: tuple[list[bytes], Checkpoint]
) -> None:
    pieces, newer = parts
    lengths = [len(piece) for piece in pieces]
    path = assembled(tmp_path / "bad.safetensors", [*pieces, b"and more"], lengths)
    with pytest.raises(FormatError):
        unpacked(path, newer)


def test_every_truncation_is_refused(tmp_path: Path, parts: tuple[list[bytes], Checkpoint]) -> None:
    pieces, newer = parts
    data = assembled(tmp_path / "good.safetensors", pieces).read_bytes()
    path = tmp_path / "bad.safetensors"
    for keep in (0, 1, 8, HEADER - 1, HEADER, HEADER + 5, HEADER + 12, len(data) - 1):
        path.write_bytes(data[:keep])
        with pytest.raises(FormatError):
            unpacked(path, newer)
    path.write_bytes(data + b"\0")
    with pytest.raises(FormatError):
        unpacked(path, newer)


def test_flipped_bytes_are_refused_or_change_the_root(tmp_path: Path) -> None:
    """A flipped byte inside a frame may decode to something; then the root tells."""
    older, newer = (MemoryCheckpoint({"w": np.arange(40, dtype=np.float32) + at}) for at in (0, 1))
    path = packed(tmp_path / "d.safetensors", older, newer)
    data, good = path.read_bytes(), canonical(older)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 0x11
        path.write_bytes(bad)
        try:
            found = unpacked(path, newer)
        except PoloError:
            continue
        assert found != good
        assert len(found) == len(good)


def test_a_delta_for_another_layout_is_refused(
    tmp_path: Path, parts: tuple[list[bytes], Checkpoint]
) -> None:
    pieces, _ = parts
    path = assembled(tmp_path / "d.safetensors", pieces)
    for other in (
        {"a": np.zeros(BIG, np.float32)},
        {"a": np.zeros(BIG + 1, np.float32), "b": np.zeros(50, np.float32)},
        {"a": np.zeros(50, np.float32), "b": np.zeros(BIG, np.float32)},
    ):
        with pytest.raises(FormatError):
            unpacked(path, MemoryCheckpoint(other))


BOMB = """
import resource, sys
from pathlib import Path
import numpy as np
from polo.errors import FormatError
from polo.storage.delta import apply_delta
from polo.weights import MemoryCheckpoint
newer = MemoryCheckpoint({"w": np.zeros(1000, np.float32)})
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def tried(path):
    try:
        apply_delta(Path(path), newer, lambda data: None, place="bomb")
    except FormatError:
        return
    raise SystemExit("it was accepted")
tried(sys.argv[1])
before = peak()
for path in sys.argv[2:]:
    tried(path)
print(peak() - before)
"""


def test_bombs_are_refused_without_memory(tmp_path: Path, in_child: Callable[..., Any]) -> None:
    chunk = bytes(2**20)
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=2**30)
    huge = b"".join(compressor.compress(chunk) for _ in range(2**10)) + compressor.flush()
    bombs = {
        "small": frame(b"x"),
        "a gigabyte": huge,
        "hidden gigabyte": frame_without_size(bytes(2**26)) * 16,
        "exabyte": declaring(frame(b"x" * 100), 2**60),
        "lying": declaring(huge, 4000),
    }
    paths = [assembled(tmp_path / name, [piece]) for name, piece in bombs.items()]
    assert int(in_child(BOMB, *paths, bare=True).stdout) < 32 * 2**20


def test_types_have_the_width_that_shuffling_uses() -> None:
    for dtype in TYPES:
        name = MemoryCheckpoint({"w": torch.zeros(2, dtype=dtype)}).layout.tensors[0].dtype
        assert DTYPE_BYTES[name] == dtype.itemsize
