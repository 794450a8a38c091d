"""Checkpoint files: readable by everybody, and no hostile header does harm."""

import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from polo.errors import FormatError, LimitError, PoloError, StoreError, WeightsError
from polo.protocol.layout import Layout
from polo.weights import FileCheckpoint, MemoryCheckpoint, commit
from polo.weights.files import MAX_HEADER, header_of, open_plain, read_header, write_checkpoint

STORABLE = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
    torch.uint64, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64,
]  # fmt: skip


def every_type() -> dict[str, torch.Tensor]:
    raw = torch.arange(96, dtype=torch.uint8)
    state = {}
    for dtype in STORABLE:
        values = raw % 2 if dtype is torch.bool else raw
        state[f"layer.{dtype}"] = values.view(dtype).reshape(2, -1)
    state["scalar"] = torch.tensor(3.5)
    state["empty"] = torch.empty(0, 4)
    state["strided"] = torch.arange(12.0).reshape(3, 4).T
    state['nämé\U0001f600 "quoted" \\'] = torch.ones(3)
    return state


def written(path: Path, state: dict[str, Any]) -> Layout:
    checkpoint = MemoryCheckpoint(state)
    with path.open("wb") as file:
        write_checkpoint(checkpoint, file.write)
    return checkpoint.layout


def test_safetensors_reads_what_we_write(tmp_path: Path) -> None:
    state = every_type()
    written(tmp_path / "w.safetensors", state)
    found = load_file(tmp_path / "w.safetensors")
    assert set(found) == set(state)
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        ours, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (value, found[name]))
        assert torch.equal(ours, theirs), name


def test_we_read_what_safetensors_writes(tmp_path: Path) -> None:
    state = {name: value.contiguous().clone() for name, value in every_type().items()}
    save_file(state, tmp_path / "w.safetensors", metadata={"format": "pt"})
    with FileCheckpoint.any(tmp_path / "w.safetensors") as delivered:
        assert commit(delivered).root == commit(MemoryCheckpoint(state)).root


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex32])
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_types_that_safetensors_lacks_are_refused_by_name(dtype: torch.dtype) -> None:
    value = torch.view_as_complex(torch.ones(2, 2).half()).to(dtype)
    layout = MemoryCheckpoint({"fft.weight": value}).layout
    with pytest.raises(WeightsError) as caught:
        header_of(layout)
    assert caught.value.place == "fft.weight"


def test_headers_end_on_eight_bytes_and_hold_nothing_that_varies(tmp_path: Path) -> None:
    for names in (["a"], ["a", "bc"], ["weight.of.something"]):
        layout = MemoryCheckpoint({name: torch.ones(1) for name in names}).layout
        header = header_of(layout)
        assert len(header) % 8 == 0
        assert header == header_of(layout)
        assert b"__metadata__" not in header


SMALL = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([7], dtype=torch.int64)}


def test_any_flipped_byte_of_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    layout = written(path, SMALL)
    good = path.read_bytes()
    for at in range(len(header_of(layout))):
        for bit in (1, 128):
            bad = bytearray(good)
            bad[at] ^= bit
            path.write_bytes(bad)
            with pytest.raises(FormatError):
                FileCheckpoint.canonical(path, layout)


@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "header only"])
def test_files_of_any_other_size_are_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "w.safetensors"
    layout = written(path, SMALL)
    good = path.read_bytes()
    bad = {
        "shorter": good[:-1],
        "longer": good + b"\0",
        "empty": b"",
        "header only": header_of(layout),
    }
    path.write_bytes(bad[change])
    with pytest.raises(FormatError):
        FileCheckpoint.canonical(path, layout)


def test_a_file_with_metadata_is_not_canonical(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    layout = written(path, SMALL)
    save_file(SMALL, path, metadata={"format": "pt"})
    with pytest.raises(FormatError):
        FileCheckpoint.canonical(path, layout)


def test_flipped_data_changes_the_root(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    layout = written(path, SMALL)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with FileCheckpoint.canonical(path, layout) as stored:
        assert commit(stored).root != commit(MemoryCheckpoint(SMALL)).root


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    layout = written(path, SMALL)
    with FileCheckpoint.canonical(path, layout) as stored:
        os.truncate(path, path.stat().st_size - 8)
        with pytest.raises(FormatError, match="too early"):
            commit(stored)


def test_reads_that_the_system_cuts_short_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux never reads more than two gigabytes at once; here it is ten bytes."""
    path = tmp_path / "w.safetensors"
    layout = written(path, SMALL)
    whole = os.pread
    with FileCheckpoint.canonical(path, layout) as stored:
        monkeypatch.setattr(os, "pread", lambda handle, size, at: whole(handle, min(size, 10), at))
        assert stored.read(0, 0, 24) == SMALL["a.weight"].numpy().tobytes()


def raw_file(path: Path, header: bytes, data: int = 24, length: int | None = None) -> Path:
    size = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + header + bytes(data))
    return path


def entry(dtype: Any = "F32", shape: Any = (6,), offsets: Any = (0, 24), **more: Any) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


HOSTILE: dict[str, Any] = {
    "a list": [],
    "a number": 3,
    "no tensor": {},
    "entry is no object": {"a": 3},
    "entry lacks a field": {"a": {"dtype": "F32", "shape": [6]}},
    "entry has another field": {"a": entry(extra=1)},
    "unknown type": {"a": entry("F128")},
    "type is no word": {"a": entry(["F32"])},
    "wrong type for the size": {"a": entry("F64")},
    "shape is no list": {"a": entry(shape="6")},
    "shape too large for the data": {"a": entry(shape=(7,))},
    "negative shape": {"a": entry(shape=(-2, -3))},
    "float in shape": {"a": entry(shape=(6.0,))},
    "boolean in shape": {"a": entry(shape=(True, 6))},
    "absurd shape": {"a": entry(shape=(2**48,) * 32)},
    "too many dimensions": {"a": entry(shape=(1,) * 33 + (6,))},
    "huge number": {"a": entry(shape=(10**4000,))},
    "float offsets": {"a": entry(offsets=(0.0, 24.0))},
    "boolean offsets": {"a": entry("U8", (1,), (False, True))},
    "negative offsets": {"a": entry(offsets=(-24, 0))},
    "offsets backwards": {"a": entry(offsets=(24, 0))},
    "offsets past the end": {"a": entry(offsets=(24, 48))},
    "one offset": {"a": entry(offsets=(0,))},
    "three offsets": {"a": entry(offsets=(0, 24, 24))},
    "overlap": {"a": entry("F32", (4,), (0, 16)), "b": entry("F32", (4,), (8, 24))},
    "same bytes twice": {"a": entry(), "b": entry()},
    "hole in the middle": {"a": entry("U8", (8,), (0, 8)), "b": entry("U8", (8,), (16, 24))},
    "hole at the start": {"a": entry("U8", (8,), (16, 24))},
    "data past the last tensor": {"a": entry("U8", (8,), (0, 8))},
    "empty name": {"": entry()},
    "long name": {"n" * 600: entry()},
    "control characters": {"a\nb": entry()},
    "lone surrogate": {"\ud800": entry()},
    "lone surrogate in a refused entry": {"\udfff": 3},
    "metadata only": {"__metadata__": {"a": "b"}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, kind: str) -> None:
    path = raw_file(tmp_path / "w.safetensors", json.dumps(HOSTILE[kind]).encode())
    with pytest.raises(FormatError) as caught:
        read_header(path)
    # Whatever is said must also be printable.
    str(caught.value).encode()
    assert "w.safetensors" in str(caught.value)


GOOD = json.dumps({"a": entry()}).encode()
BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello wo",
    "cut off": GOOD[:-1],
    "two documents": GOOD + GOOD,
    "NaN": GOOD.replace(b"24", b"NaN"),
    "infinity": GOOD.replace(b"24", b"Infinity"),
    "exponent": GOOD.replace(b"24", b"2.4e1"),
    "overflowing exponent": GOOD.replace(b"24", b"1e999"),
    "endless integer": GOOD.replace(b"24", b"9" * 5000),
    "name twice": GOOD[:-1] + b"," + GOOD[1:],
    "field twice": GOOD.replace(b'"shape"', b'"shape": [6], "shape"'),
    "deeply nested lists": b"[" * 200_000,
    "deeply nested objects": b'{"a":' * 200_000,
    "deep metadata": b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"," + GOOD[1:],
    "UTF-16": GOOD.decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "not UTF-8": GOOD.replace(b'"a"', b'"\xff"'),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_headers_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FormatError):
        read_header(raw_file(tmp_path / "w.safetensors", BROKEN[kind]))


def test_the_pattern_of_these_tests_is_accepted_when_nothing_is_wrong(tmp_path: Path) -> None:
    layout, start, offsets = read_header(raw_file(tmp_path / "w.safetensors", GOOD + b"   "))
    assert (layout.tensors[0].name, start, offsets) == ("a", 8 + len(GOOD) + 3, [0])
    three = {
        "b": entry("U8", (8,), (0, 8)),
        "a": entry("U16", (8,), (8, 24)),
        "e": entry("U8", (0,), (8, 8)),
    }
    path = raw_file(tmp_path / "v.safetensors", json.dumps(three).encode())
    layout, _, offsets = read_header(path)
    assert [tensor.name for tensor in layout.tensors] == ["a", "b", "e"]
    assert offsets == [8, 0, 8]


@pytest.mark.parametrize("length", [25, 2**31, 2**63, 2**64 - 1])
def test_headers_longer_than_the_file_are_refused_before_reading(
    tmp_path: Path, length: int
) -> None:
    with pytest.raises(FormatError):
        read_header(raw_file(tmp_path / "w.safetensors", b"{}", data=10, length=length))


def test_huge_headers_are_refused_before_reading(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "w.safetensors", b"{}", length=MAX_HEADER + 1)
    os.truncate(path, MAX_HEADER + 100)
    with pytest.raises(LimitError):
        read_header(path)


@pytest.mark.parametrize("size", range(8))
def test_files_shorter_than_a_length_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(bytes(size))
    with pytest.raises(FormatError):
        read_header(path)


def promptly(call: Callable[[], object]) -> BaseException | None:
    """What a call raises; fails if it hangs."""
    caught: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            caught.append(None)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert caught, "it hangs"
    return caught[0]


@pytest.mark.parametrize("kind", ["folder", "link", "link to nothing", "pipe", "device", "missing"])
@pytest.mark.parametrize("reader", [read_header, open_plain, FileCheckpoint.any])
def test_only_plain_files_are_opened_and_none_hangs(
    tmp_path: Path, kind: str, reader: Callable[[Path], object]
) -> None:
    path = tmp_path / "w.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        written(tmp_path / "real.safetensors", SMALL)
        path.symlink_to(tmp_path / "real.safetensors")
    elif kind == "link to nothing":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    assert isinstance(promptly(lambda: reader(path)), StoreError)


def test_refusing_a_file_leaves_no_handle_open(tmp_path: Path) -> None:
    layout = written(tmp_path / "w.safetensors", SMALL)
    raw_file(tmp_path / "w.safetensors", BROKEN["no JSON"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        for call in (
            lambda: FileCheckpoint.canonical(tmp_path / "w.safetensors", layout),
            lambda: FileCheckpoint.any(tmp_path / "w.safetensors"),
            lambda: open_plain(tmp_path),
        ):
            with pytest.raises(PoloError):
                call()
    assert len(os.listdir("/proc/self/fd")) == before
