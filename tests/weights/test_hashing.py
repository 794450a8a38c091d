"""Roots: the definition, whatever the threads, the pieces or the place of the weights."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polo.errors import WeightsError
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.weights import FileCheckpoint, MemoryCheckpoint, commit, diff, hashing
from polo.weights.files import header_of, write_checkpoint

MIB = 2**20


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def naive_tree(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else sha(b"")
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha(b"\x01", naive_tree(leaves[:split]), naive_tree(leaves[split:]))


def naive_root(state: dict[str, np.ndarray[Any, Any]], layout_digest: bytes) -> bytes:
    """The definition of the root, with nothing of PoLO in it."""
    leaves = []
    for tensor, name in enumerate(sorted(state, key=str.encode)):
        data = state[name].tobytes()
        for chunk, at in enumerate(range(0, len(data), 16384)):
            piece = data[at : at + 16384]
            leaves.append(sha(struct.pack("<BIQI", 0, tensor, chunk, len(piece)), piece))
    tag = b"\x0bpolo/root/1"
    return sha(tag, layout_digest, struct.pack("<Q", len(leaves)), naive_tree(leaves))


def state_of(*elements: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    return {f"t{at}": random.normal(size=n).astype(np.float32) for at, n in enumerate(elements)}


# Empty, one weight, one chunk exactly, one weight more, several, and enough for many pieces.
SHAPES = [(1,), (0, 1), (4096,), (4097,), (4095, 0, 1), (12_288, 5, 4096), (1_500_000, 3, 600_000)]


@pytest.mark.parametrize("elements", SHAPES)
def test_root_equals_the_definition(elements: tuple[int, ...]) -> None:
    state = state_of(*elements)
    checkpoint = MemoryCheckpoint(state)
    assert commit(checkpoint).root == naive_root(state, checkpoint.layout.digest)


@pytest.mark.parametrize("count", [*range(1, 18), 31, 32, 33])
def test_trees_of_every_small_size_equal_the_definition(count: int) -> None:
    state = {f"t{at:02d}": np.full(1, at, dtype=np.int64) for at in range(count)}
    checkpoint = MemoryCheckpoint(state)
    assert commit(checkpoint).root == naive_root(state, checkpoint.layout.digest)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("chunks_per_piece", [1, 3, 128, 10_000])
def test_root_depends_on_neither_threads_nor_pieces(
    threads: int, chunks_per_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = MemoryCheckpoint(state_of(300_000, 7, 100_000))
    expected = commit(checkpoint, threads=1).root
    monkeypatch.setattr(hashing, "PIECE_BYTES", chunks_per_piece * CHUNK_BYTES)
    assert commit(checkpoint, threads=threads).root == expected


def test_root_covers_names_types_shapes_and_every_byte() -> None:
    values = np.arange(6, dtype=np.float32)
    roots = {
        commit(MemoryCheckpoint(state)).root
        for state in (
            {"a": values},
            {"b": values},
            {"a": values.reshape(2, 3)},
            {"a": values.reshape(3, 2)},
            {"a": values.view(np.int32)},
            {"a": values[:3], "b": values[3:]},
            {"a": values[:4], "b": values[4:]},
            {"a": np.concatenate([values[:5], [5.0000005]]).astype(np.float32)},
            {"a": np.concatenate([[-0.0], values[1:]]).astype(np.float32)},
        )
    }
    assert len(roots) == 9


def test_diff_names_exactly_the_changed_tensors() -> None:
    state = state_of(10_000, 0, 1, 50_000, 4096)
    before = commit(MemoryCheckpoint(state))
    assert diff(before, commit(MemoryCheckpoint(state))) == []
    changed = {name: value.copy() for name, value in state.items()}
    changed["t3"][-1] += 1
    changed["t2"][0] = 9
    assert diff(before, commit(MemoryCheckpoint(changed))) == ["t2", "t3"]


def test_diff_refuses_other_layouts() -> None:
    one, other = (commit(MemoryCheckpoint(state_of(n))) for n in (3, 4))
    with pytest.raises(WeightsError, match="different layouts"):
        diff(one, other)


def test_file_and_memory_give_one_root(tmp_path: Path) -> None:
    checkpoint = MemoryCheckpoint(state_of(700_000, 1, 0, 33))
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        write_checkpoint(checkpoint, file.write)
    with FileCheckpoint.canonical(path, checkpoint.layout) as stored:
        assert commit(stored) == commit(checkpoint)


def test_an_opening_leads_to_the_root() -> None:
    checkpoint = MemoryCheckpoint(state_of(30_000, 9, 50_000))
    commitment = commit(checkpoint)
    leaves = dict(enumerate(checkpoint.layout.leaves()))
    where = {index: leaves[index] for index in (0, 7, 8, len(leaves) - 1)}
    opening = commitment.open(checkpoint, where)
    assert opening.root(checkpoint.layout, where, place="test") == commitment.root


def test_a_bad_value_is_reported_whichever_thread_finds_it() -> None:
    state = state_of(2_000_000, 2_000_000)
    state["t1"][1_234_567] = np.nan
    with pytest.raises(WeightsError) as caught:
        commit(MemoryCheckpoint(state), threads=4)
    assert caught.value.place == "t1"


MEASURE = """
import resource, sys
from polo.weights import commit
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
root = commit(checkpoint, threads=int(sys.argv[1])).root
print(peak() - before)
"""

FROM_MEMORY = """
import torch
from polo.weights import MemoryCheckpoint, commit
torch.set_num_threads(1)
# One byte each: wide indices would show.
strided = torch.ones(1024, 128, 4096, dtype=torch.int8).transpose(0, 1)
assert strided.numel() == 512 * 2**20
# What loads on first use is not what is measured.
commit(MemoryCheckpoint({"w": strided[:2]}))
checkpoint = MemoryCheckpoint({"w": strided})
"""

FROM_FILE = """
from pathlib import Path
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.weights import FileCheckpoint
layout = Layout(CHUNK_BYTES, (Tensor("w", "F32", (128, 1024, 1024)),), ())
checkpoint = FileCheckpoint.canonical(Path(sys.argv[2]), layout)
"""


@pytest.mark.parametrize("source", ["strided", "file"])
def test_half_a_gigabyte_takes_little_extra_memory(
    source: str, tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    path = tmp_path / "big.safetensors"
    if source == "file":
        layout = Layout(CHUNK_BYTES, (Tensor("w", "F32", (128, 1024, 1024)),), ())
        with path.open("wb") as file:
            file.write(header_of(layout))
            file.truncate(file.tell() + layout.size)
        assert layout.size == 512 * MIB
    code = "import sys\n" + (FROM_FILE if source == "file" else FROM_MEMORY) + MEASURE
    extra = int(in_child(code, 2, path, bare=True).stdout)
    assert extra < 64 * MIB
