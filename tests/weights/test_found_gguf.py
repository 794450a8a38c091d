"""GGUF files: the values are those of the gguf package, and no hostile header does harm."""

import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polo.errors import FormatError, LimitError, MissingError, PoloError, StoreError, WeightsError
from polo.weights import gguf_file
from polo.weights.found import open_found

QUANTISED = [
    kind for kind in Type
    if kind.name not in ("F16", "F32", "F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "Q1_0")
]  # fmt: skip
CAN_QUANTISE = [Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]


def packed(kind: Type, shape: tuple[int, ...], seed: int = 0) -> Any:
    """A tensor of this type: quantised where the package can, else any bytes that are finite."""
    random = np.random.default_rng(seed)
    if kind in CAN_QUANTISE:
        return quants.quantize(random.normal(0, 0.02, shape).astype(np.float32), kind)
    data = random.integers(0, 256, quants.quant_shape_to_byte_shape(shape, kind), dtype=np.uint8)
    if kind is Type.BF16:
        return data
    # Scales are 16-bit floats somewhere in a block. Without this bit none of them is infinite.
    return data & 0xBF


def write(path: Path, tensors: dict[str, tuple[Any, Type | None]], **keys: Any) -> Path:
    """A file by the package's own writer."""
    writer = gguf.GGUFWriter(path, "test")
    for key, value in keys.items():
        add = writer.add_array if isinstance(value, list) else writer.add_string
        add(key.replace("_", "."), value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def every_kind(path: Path) -> Path:
    random = np.random.default_rng(1)
    tensors: dict[str, tuple[Any, Type | None]] = {
        kind.name: (packed(kind, (3, 512)), kind) for kind in QUANTISED
    }
    for dtype in (np.float16, np.float32, np.float64):
        tensors[np.dtype(dtype).name] = (random.normal(size=(5, 7)).astype(dtype), None)
    tensors["three"] = (packed(Type.Q4_1, (2, 3, 64)), Type.Q4_1)
    tensors["vector"] = (np.arange(11, dtype=np.float32), None)
    return write(path, tensors, tokens=["a", "", "größer" * 50], scores=[1.5, 2.5], sizes=[1, 2])


def test_values_are_those_of_the_package(tmp_path: Path) -> None:
    path = every_kind(tmp_path / "m.gguf")
    theirs = gguf.GGUFReader(path)
    with open_found(path) as found:
        assert len(found.tensors) == len(theirs.tensors)
        for tensor in theirs.tensors:
            ours = found.values(tensor.name)
            if tensor.tensor_type is Type.F64:
                want, dtype = tensor.data, np.float64
            else:
                want, dtype = quants.dequantize(tensor.data, tensor.tensor_type), np.float32
            assert ours.dtype == dtype
            assert ours.shape == want.shape == found.tensors[tensor.name].shape
            np.testing.assert_array_equal(ours, want, err_msg=tensor.name)
            assert found.tensors[tensor.name].kind == tensor.tensor_type.name
        assert found.tensors["three"].shape == (2, 3, 64)
        assert found.description.startswith("GGUF (test), ")


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q4_1])
def test_quantised_weights_come_back_nearly_as_they_were(tmp_path: Path, kind: Type) -> None:
    weights = np.random.default_rng(3).normal(0, 1, (16, 64)).astype(np.float32)
    path = write(tmp_path / "m.gguf", {"w": (quants.quantize(weights, kind), kind)})
    with open_found(path) as found:
        error = np.abs(found.values("w") - weights).max()
    assert 0 < error < (0.05 if kind is Type.Q8_0 else 0.5)


def test_any_span_is_the_same_part_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polo.weights.found_model.PIECE", 300)
    random = np.random.default_rng(5)
    with open_found(every_kind(tmp_path / "m.gguf")) as found:
        for name, tensor in found.tensors.items():
            whole = found.values(name).reshape(-1)
            for _ in range(40):
                start, stop = sorted(random.integers(0, tensor.elements + 1, 2).tolist())
                part = found.read(name, start, stop)
                assert part.shape == (stop - start,)
                np.testing.assert_array_equal(part, whole[start:stop])


def test_a_small_read_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", {"w": (packed(Type.Q4_1, (64, 512)), Type.Q4_1)})
    sizes = []
    whole = os.pread

    def watched(handle: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return whole(handle, size, at)

    with open_found(path) as found:
        monkeypatch.setattr(os, "pread", watched)
        found.read("w", 256, 512)
        found.read("w", 31, 33)
    assert sizes == [8 * 20, 2 * 20]


def test_threads_read_the_same_values(tmp_path: Path) -> None:
    with open_found(every_kind(tmp_path / "m.gguf")) as found:
        want = {name: found.values(name) for name in found.tensors}
        wrong: list[str] = []

        def work() -> None:
            for name, values in want.items():
                if not np.array_equal(found.values(name), values):
                    wrong.append(name)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# By hand from here on: what the package would never write.

U8, U32, F32, STRING, ARRAY = 0, 4, 6, 8, 9


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + items


def entry(
    name: bytes = b"w", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0
) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def whole(
    *entries: bytes,
    keys: tuple[bytes, ...] = (),
    data: int = 16,
    version: int = 3,
    tensors: int | None = None,
    pairs: int | None = None,
) -> bytes:
    counts = len(entries) if tensors is None else tensors, len(keys) if pairs is None else pairs
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(entries)
    return header + bytes(-len(header) % 32) + bytes(data)


def put(folder: Path, content: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(content)
    return path


GOOD: dict[str, bytes] = {
    "plain": whole(entry()),
    "version 2": whole(entry(), version=2),
    "scalar": whole(entry(dims=())),
    "empty tensor": whole(entry(dims=(4, 0))),
    "empty tensors in one place": whole(entry(b"a", (0,)), entry(b"b", (0,)), entry(b"c", (4,))),
    "out of order": whole(entry(b"a", (4,), 0, 32), entry(b"b", (4,), 0, 0), data=48),
    "a gap": whole(entry(b"a"), entry(b"b", (4,), 0, 64), data=80),
    "longer than it must be": whole(entry(), data=500),
    "no tensor": whole(),
    "values of all kinds": whole(
        entry(),
        keys=(
            key(b"a", STRING, text(b"\xff\xfe")),
            key(b"b", ARRAY, array(STRING, 3, text(b"x") * 3)),
            key(b"c", ARRAY, array(ARRAY, 2, array(U32, 2, bytes(8)) * 2)),
            key(b"d", ARRAY, array(F32, 0)),
            *(key(b"%d" % n, n, bytes(8)[: struct.calcsize(c)]) for n, c in enumerate("BbHhIif?")),
            *(key(b"%d" % n, n, bytes(8)) for n in (10, 11, 12)),
        ),
    ),
    "other alignment": whole(
        entry(b"a"),
        entry(b"b", (4,), 0, 16),
        keys=(key(b"general.alignment", U32, struct.pack("<I", 16)),),
        data=64,
    ),
}

ALIGN = b"general.alignment"
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "magic alone": b"GGUF",
    "version 1": whole(entry(), version=1),
    "version 4": whole(entry(), version=4),
    "big-endian": whole(entry(), version=3 << 24),
    "absurd count of tensors": whole(entry(), tensors=2**64 - 1),
    "more tensors than there are": whole(entry(), tensors=2),
    "absurd count of keys": whole(entry(), pairs=2**64 - 1),
    "more keys than there are": whole(entry(), pairs=50),
    "absurd key": whole(entry(), keys=(text(b"a", 2**63),)),
    "long key": whole(entry(), keys=(key(b"k" * 5000, U8, b"\0"),)),
    "key twice": whole(entry(), keys=(key(b"k", U8, b"\0"),) * 2),
    "unknown kind of value": whole(entry(), keys=(key(b"k", 13, bytes(8)),)),
    "unknown kind in an array": whole(entry(), keys=(key(b"k", ARRAY, array(77, 1)),)),
    "absurd string": whole(entry(), keys=(key(b"k", STRING, text(b"", 2**64 - 1)),)),
    "absurd array of bytes": whole(entry(), keys=(key(b"k", ARRAY, array(U8, 2**64 - 1)),)),
    "absurd array of strings": whole(entry(), keys=(key(b"k", ARRAY, array(STRING, 2**62)),)),
    "array whose size overflows": whole(entry(), keys=(key(b"k", ARRAY, array(12, 2**61)),)),
    "deep arrays": whole(entry(), keys=(key(b"k", ARRAY, array(ARRAY, 1) * 50_000),)),
    "wide and deep arrays": whole(entry(), keys=(key(b"k", ARRAY, array(ARRAY, 2**60) * 9),)),
    "alignment of zero": whole(entry(), keys=(key(ALIGN, U32, bytes(4)),)),
    "odd alignment": whole(entry(), keys=(key(ALIGN, U32, struct.pack("<I", 24)),)),
    "negative alignment": whole(entry(), keys=(key(ALIGN, 5, struct.pack("<i", -32)),)),
    "alignment is a float": whole(entry(), keys=(key(ALIGN, F32, struct.pack("<f", 32)),)),
    "alignment is a string": whole(entry(), keys=(key(ALIGN, STRING, text(b"32")),)),
    "alignment past the end": whole(entry(), keys=(key(ALIGN, U32, struct.pack("<I", 2**31)),)),
    "absurd name": whole(text(b"w", 2**64 - 1)),
    "long name": whole(entry(b"w" * 600)),
    "empty name": whole(entry(b"")),
    "name that is not UTF-8": whole(entry(b"\xff")),
    "name with control characters": whole(entry(b"w\x1b[2J")),
    "name twice": whole(entry(), entry(dims=(4,), offset=32), data=64),
    "too many dimensions": whole(entry(dims=(1, 1, 1, 1, 4))),
    "absurd count of dimensions": whole(text(b"w") + struct.pack("<I", 2**32 - 1)),
    "absurd dimension": whole(entry(dims=(2**64 - 1,))),
    "product overflows to a small one": whole(entry(dims=(2**32, 2**32, 1, 4))),
    "product overflows to zero": whole(entry(dims=(2**63, 2))),
    "empty but absurd": whole(entry(dims=(0, 2**63, 2**63))),
    "unknown type": whole(entry(kind=99)),
    "removed type": whole(entry(kind=4)),
    "half a block": whole(entry(dims=(16,), kind=int(Type.Q4_0))),
    "rows that do not fill blocks": whole(entry(dims=(16, 2), kind=int(Type.Q4_0)), data=64),
    "too large for the file": whole(entry(dims=(5,))),
    "offset that is not aligned": whole(entry(offset=8), data=64),
    "offset past the end": whole(entry(offset=32)),
    "absurd offset": whole(entry(offset=2**64 - 32)),
    "overlap": whole(entry(b"a", (16,)), entry(b"b", (4,), 0, 32), data=64),
    "same bytes twice": whole(entry(b"a"), entry(b"b")),
}


@pytest.mark.parametrize("kind", GOOD)
def test_odd_but_valid_files_are_read(tmp_path: Path, kind: str) -> None:
    with open_found(put(tmp_path, GOOD[kind])) as found:
        for name, tensor in found.tensors.items():
            assert found.values(name).shape == tensor.shape


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FormatError) as caught:
        open_found(put(tmp_path, HOSTILE[kind]))
    str(caught.value).encode()
    assert "m.gguf" in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    good = GOOD["values of all kinds"]
    for size in range(len(good)):
        path = put(tmp_path, good[:size])
        with pytest.raises(PoloError):
            open_found(path)
    open_found(put(tmp_path, good)).close()


def read_all(path: Path) -> None:
    """Open and read everything; only our own errors are let through."""
    try:
        with open_found(path) as found:
            for name, tensor in found.tensors.items():
                assert not tensor.refusal or tensor.kind
                try:
                    found.values(name)
                except WeightsError:
                    assert tensor.refusal
    except PoloError as error:
        error.diagnostics().encode()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("real")
    tensors = {kind.name: (packed(kind, (1, 256)), kind) for kind in QUANTISED}
    return write(folder / "m.gguf", tensors, tokens=["a", "b"]).read_bytes()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1))
def test_flipped_bytes_do_no_harm(
    real: bytes, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    bad = bytearray(real)
    for at, mask in flips:
        bad[at % len(bad)] ^= mask
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(bad)
    read_all(path)


@pytest.mark.parametrize("kind", QUANTISED)
def test_any_bytes_are_dequantised_to_something(tmp_path: Path, kind: Type) -> None:
    """NaN and infinity among them, which are passed on without a warning."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    path = put(tmp_path, whole(entry(dims=(block * 64,), kind=int(kind)), data=0))
    random = np.random.default_rng(9)
    with path.open("ab") as file:
        file.write(random.integers(0, 256, 32 * size, dtype=np.uint8).tobytes())
        file.write(b"\xff" * (32 * size))
    with open_found(path) as found:
        assert found.values("w").shape == (block * 64,)


def test_nan_and_infinity_are_passed_on(tmp_path: Path) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    with open_found(write(tmp_path / "m.gguf", {"w": (values, None)})) as found:
        np.testing.assert_array_equal(found.values("w"), values)


def test_endless_lists_of_strings_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty strings take eight bytes each; a sparse file has as many as one likes."""
    monkeypatch.setattr(gguf_file, "_MAX_ITEMS", 10_000)
    content = whole(tensors=1, keys=(key(b"k", ARRAY, array(STRING, 2**40)),), data=0)
    path = put(tmp_path, content)
    os.truncate(path, 2**33)
    with pytest.raises(LimitError, match="strings"):
        open_found(path)


@pytest.mark.parametrize("kind", [Type.I8, Type.I32, Type.Q8_1, Type.Q8_K])
def test_what_cannot_be_read_is_listed_and_refused_by_name(tmp_path: Path, kind: Type) -> None:
    content = whole(entry(b"a"), entry(b"b", (256,), int(kind), 32), data=2**11)
    with open_found(put(tmp_path, content)) as found:
        assert found.values("a").shape == (4,)
        assert found.tensors["b"].refusal
        with pytest.raises(WeightsError, match=kind.name):
            found.read("b", 0, 1)


def test_a_part_of_a_split_model_says_so(tmp_path: Path) -> None:
    keys = key(b"split.no", 2, b"\1\0"), key(b"split.count", 2, b"\3\0")
    with open_found(put(tmp_path, whole(entry(), keys=keys))) as found:
        assert "part 2 of 3" in found.description


def test_architectures_that_would_spoil_a_terminal_are_not_shown(tmp_path: Path) -> None:
    keys = (key(b"general.architecture", STRING, text(b"\x1b[2Jllama")),)
    with open_found(put(tmp_path, whole(entry(), keys=keys))) as found:
        assert found.description == f"GGUF, 1 tensor, {len(whole(entry(), keys=keys)):,} bytes"


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = put(tmp_path, whole(entry()))
    with open_found(path) as found:
        os.truncate(path, path.stat().st_size - 4)
        with pytest.raises(FormatError, match="too early"):
            found.values("w")


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingError) as caught:
        open_found(put(tmp_path, whole(entry())))
    assert "polo-proof[gguf]" in caught.value.advice


def test_refusing_a_file_leaves_no_handle_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for content in HOSTILE.values():
        with pytest.raises(PoloError):
            open_found(put(tmp_path, content))
    path = put(tmp_path, whole(entry()))
    open_found(path).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_are_followed_and_pipes_refused(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(put(tmp_path, whole(entry())))
    open_found(tmp_path / "link.gguf").close()
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(StoreError):
        open_found(tmp_path / "pipe.gguf")


LIMITED = """
import resource, sys
from pathlib import Path
import gguf
from polo.errors import PoloError
from polo.weights.found import open_found
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        open_found(path).close()
        print(path.name, "opened")
    except PoloError as error:
        print(path.name, "refused")
"""


def test_hostile_headers_take_little_memory(tmp_path: Path, in_child: Callable[..., Any]) -> None:
    for at, content in enumerate(HOSTILE.values()):
        (tmp_path / f"{at:03d}.gguf").write_bytes(content)
    many = [entry(b"%d" % at, (0,)) for at in range(30_000)]
    (tmp_path / "many.gguf").write_bytes(whole(*many, data=0))
    pairs = tuple(key(b"%d" % at, U8, b"\0") for at in range(2**16))
    (tmp_path / "pairs.gguf").write_bytes(whole(entry(), keys=pairs))
    strings = key(b"k", ARRAY, array(STRING, 300_000, bytes(8 * 300_000)))
    (tmp_path / "strings.gguf").write_bytes(whole(entry(), keys=(strings,)))
    (tmp_path / "bytes.gguf").write_bytes(
        whole(entry(), keys=(key(b"k", ARRAY, array(U8, 2**22, bytes(2**22))),))
    )
    lines = in_child(LIMITED, tmp_path, bare=True).stdout.splitlines()
    opened = {line.split()[0] for line in lines if line.endswith("opened")}
    assert opened == {"many.gguf", "pairs.gguf", "strings.gguf", "bytes.gguf"}
    assert len(lines) == len(HOSTILE) + 4
