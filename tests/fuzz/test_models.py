"""Model files that were made to break a reader: safetensors, GGUF, folders with an index."""

import functools
import gzip
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz.targets import gguf
from polo.errors import PoloError
from polo.weights.found import open_found

Refused = Callable[..., str]


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def packed(header: Any, data: bytes = bytes(8), *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def shaped(dimension: bytes) -> bytes:
    """A file whose one dimension is spelled like this."""
    return packed(b'{"a":{"dtype":"F32","shape":[%b],"data_offsets":[0,8]}}' % dimension)


HEADERS = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "a header of no bytes": packed(b""),
    "a header longer than the file": packed({"a": entry()}, length=2**20),
    "a header of 2^63 bytes": packed({"a": entry()}, length=2**63),
    "a header of 2^64 - 1 bytes": packed({"a": entry()}, length=2**64 - 1),
    "no object": packed([entry()]),
    "no tensor": packed({}, b""),
    "a tensor twice": packed(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2)),
    "a field twice": packed(b'{"a":{"dtype":"F32",%b' % json.dumps(entry()).encode()[1:] + b"}"),
    "dimensions of 2^48": packed({"a": entry(shape=[2**48] * 32)}),
    "dimensions whose product wraps around": packed({"a": entry(shape=[2**32, 2**32, 2])}),
    "a million dimensions": packed({"a": entry(shape=[1] * 10**6)}),
    "a negative dimension": packed({"a": entry(shape=[-2])}),
    "two negative dimensions": packed({"a": entry(shape=[-1, -2])}),
    "a dimension of a thousand digits": shaped(b"9" * 1000),
    "a dimension that is a float": packed({"a": entry(shape=[2.0])}),
    "a dimension that is NaN": shaped(b"NaN"),
    "a dimension that is 1e999": shaped(b"1e999"),
    "a dimension with a leading zero": shaped(b"02"),
    "offsets backwards": packed({"a": entry(data_offsets=[8, 0])}),
    "offsets past the end": packed({"a": entry(data_offsets=[8, 16])}),
    "negative offsets": packed({"a": entry(data_offsets=[-8, 0])}),
    "offsets of 2^64": packed({"a": entry(data_offsets=[2**64, 2**64 + 8])}),
    "tensors that overlap": packed({"a": entry(), "b": entry()}),
    "a gap": packed({"a": entry(), "b": entry(data_offsets=[16, 24])}, bytes(24)),
    "bytes that belong to nobody": packed({"a": entry()}, bytes(9)),
    "20,000 tensors that are one": packed({f"{n}": entry() for n in range(20_000)}),
    "two million values": packed(b'{"a":[' + b"1," * 2_000_000 + b"1]}"),
    "five million empty objects": packed(b'{"a":[' + b"{}," * 5_000_000 + b"{}]}"),
    "100,000 brackets": packed(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a lone surrogate": packed(b'{"\\ud800":%b}' % json.dumps(entry()).encode()),
    "a byte order mark": packed(b"\xef\xbb\xbf" + json.dumps({"a": entry()}).encode()),
    "an unknown type": packed({"a": entry(dtype="F128")}),
    "a type that is a list": packed({"a": entry(dtype=["F32"])}),
    "a name of 513 characters": packed({"x" * 513: entry()}),
    "a name with a NUL": packed({"a\x00b": entry()}),
    "a name with an escape": packed({"\x1b[2J": entry()}),
    "values that are not finite": packed({"a": entry()}, b"\xff" * 8),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_safetensors(refused: Refused, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(HEADERS[name])
    place = "" if "finite" in name else "model.safetensors"
    refused("header", path, place, mib=160)
    refused("checkpoint", path, "model.safetensors", mib=64)


def test_the_file_that_these_are_made_from_is_read(
    attempt: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(packed({"a": entry()}))
    for kind in ("header", "found"):
        assert attempt(kind, tmp_path / "model.safetensors")["end"] == "read"


def number(code: str, *values: int) -> bytes:
    return struct.pack("<" + code, *values)


ONE = gguf.tensor(b"a", (4, 2), 0, 0)
GGUF = {
    "the magic alone": b"GGUF",
    "version 1": gguf.pack([], [ONE], bytes(32), version=1),
    "another byte order": b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + ONE,
    "2^31 tensors": b"GGUF" + number("IQQ", 3, 2**31, 0),
    "2^64 - 1 tensors": b"GGUF" + number("IQQ", 3, 2**64 - 1, 0),
    "2^63 keys": b"GGUF" + number("IQQ", 3, 0, 2**63),
    "a key of 2^40 bytes": gguf.pack([number("Q", 2**40)], [], b""),
    "a string of 2^63 bytes": gguf.pack([gguf.key(b"a", 8, number("Q", 2**63))], [], b""),
    "an array of 2^62 numbers": gguf.pack([gguf.key(b"a", 9, number("IQ", 10, 2**62))], [], b""),
    "an array of 2^40 strings": gguf.pack(
        [gguf.key(b"a", 9, number("IQ", 8, 2**40) + bytes(64))], [], b""
    ),
    "arrays in arrays, a hundred deep": gguf.pack(
        [gguf.key(b"a", 9, number("IQ", 9, 1) * 100)], [], b""
    ),
    "a key twice": gguf.pack([gguf.key(b"a", 0, b"x")] * 2, [], b""),
    "an unknown kind of value": gguf.pack([gguf.key(b"a", 99, b"")], [], b""),
    "a tensor twice": gguf.pack([], [ONE, ONE], bytes(32)),
    "tensors that overlap": gguf.pack([], [ONE, gguf.tensor(b"b", (8,), 0, 0)], bytes(32)),
    "a tensor past the end": gguf.pack([], [gguf.tensor(b"a", (2**40,), 0, 0)], bytes(32)),
    "dimensions whose product wraps around": gguf.pack(
        [], [gguf.tensor(b"a", (2**32, 2**32, 2), 0, 0)], bytes(32)
    ),
    "2^48 rows of nothing": gguf.pack([], [gguf.tensor(b"a", (0, 2**62, 2**62), 0, 0)], b""),
    "a million dimensions": gguf.pack([], [gguf.text(b"a") + number("I", 10**6)], bytes(32)),
    "an unknown type": gguf.pack([], [gguf.tensor(b"a", (4, 2), 2**31, 0)], bytes(32)),
    "rows that fill no block": gguf.pack([], [gguf.tensor(b"a", (5,), 8, 0)], bytes(64)),
    "an odd offset": gguf.pack([], [gguf.tensor(b"a", (4,), 0, 3)], bytes(64)),
    "a name with a NUL": gguf.pack([], [gguf.tensor(b"a\0b", (4,), 0, 0)], bytes(32)),
    "a name in no encoding": gguf.pack([], [gguf.tensor(b"\xff", (4,), 0, 0)], bytes(32)),
    "an alignment of 0": gguf.pack([gguf.key(b"general.alignment", 4, bytes(4))], [ONE], bytes(32)),
    "an alignment of 2^63": gguf.pack(
        [gguf.key(b"general.alignment", 10, number("Q", 2**63))], [ONE], bytes(32)
    ),
    "an alignment that is NaN": gguf.pack(
        [gguf.key(b"general.alignment", 6, struct.pack("<f", float("nan")))], [ONE], bytes(32)
    ),
}


@pytest.mark.parametrize("name", GGUF)
def test_gguf(refused: Refused, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(GGUF[name])
    refused("found", path, "model.gguf")


@pytest.mark.slow
def test_five_million_strings(refused: Refused, tmp_path: Path) -> None:
    strings = number("IQ", 8, 5 * 10**6) + bytes(8 * 5 * 10**6)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf.pack([gguf.key(b"a", 9, strings)], [], b""))
    assert "strings" in refused("found", path, "model.gguf")


def shards(folder: Path, index: Any) -> Path:
    """A folder with one good shard, a good file outside it, and an index that names what it may."""
    model = folder / "model"
    model.mkdir()
    (model / "a.safetensors").write_bytes(packed({"a": entry()}))
    (folder / "b.safetensors").write_bytes(packed({"b": entry()}))
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    (model / "model.safetensors.index.json").write_bytes(text)
    return model


INDICES = {
    "nothing": b"",
    "no object": b"[]",
    "no map": {},
    "an empty map": {"weight_map": {}},
    "a path upwards": {"weight_map": {"b": "../b.safetensors"}},
    "an absolute path": {"weight_map": {"b": "/tmp/b.safetensors"}},
    "a path with a drive": {"weight_map": {"b": "C:\\b.safetensors"}},
    "a path within": {"weight_map": {"b": "./a.safetensors"}},
    "a name with a NUL": {"weight_map": {"b": "a.safetensors\x00"}},
    "a name of a million characters": {"weight_map": {"b": "a" * 10**6 + ".safetensors"}},
    "a name that reads from right to left": {"weight_map": {"b": "\u202ea.safetensors"}},
    "a name in full width": {"weight_map": {"b": "\uff41.safetensors"}},
    "a lone surrogate": b'{"weight_map":{"b":"\\ud800.safetensors"}}',
    "a pickle": {"weight_map": {"b": "pytorch_model.bin"}},
    "a shard that is missing": {"weight_map": {"a": "c.safetensors"}},
    "a shard without the tensor": {"weight_map": {"z": "a.safetensors"}},
    "10,000 shards": {"weight_map": {str(n): f"{n}.safetensors" for n in range(10_000)}},
    "a tensor twice": b'{"weight_map":{"a":"a.safetensors","a":"a.safetensors"}}',
    "100,000 brackets": b"[" * 100_000,
    "five million empty objects": b'{"a":[' + b"{}," * 5_000_000 + b"{}]}",
    "a shard that is a number": {"weight_map": {"a": 1}},
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(refused: Refused, tmp_path: Path, name: str) -> None:
    # A shard that lacks a tensor is named by itself.
    refused(
        "found",
        shards(tmp_path, INDICES[name]),
        "a.safetensors" if "without" in name else "",
        mib=160,
    )


def test_the_folder_that_these_are_made_from_is_read(
    attempt: Callable[..., Any], tmp_path: Path
) -> None:
    model = shards(tmp_path, {"weight_map": {"a": "a.safetensors"}})
    assert attempt("found", model)["end"] == "read"


@functools.cache
def bomb(kind: str) -> bytes:
    """A hundred megabytes of zeros, packed into a hundred kilobytes."""
    zeros = bytes(100 * 2**20)
    if kind == "gzip":
        return gzip.compress(zeros)
    packed_zeros = io.BytesIO()
    with zipfile.ZipFile(packed_zeros, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", zeros)
    return packed_zeros.getvalue()


@pytest.mark.parametrize("kind", ["zip", "gzip"])
@pytest.mark.parametrize("suffix", ["bin", "safetensors", "gguf", "polo"])
def test_compressed_bombs(refused: Refused, tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(bomb(kind))
    for reader in ("found", "header", "bundle"):
        refused(reader, path, "model", mib=16)


SMALL = packed({"a": entry(), "b": entry(data_offsets=[8, 16])}, bytes(16))


@pytest.mark.parametrize("data", [SMALL, GGUF["a tensor twice"][:-1]], ids=["safetensors", "gguf"])
def test_truncation_anywhere(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(PoloError):
            open_found(path)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"model.{form}"
    path.write_bytes(SMALL if form == "safetensors" else gguf.pack([], [ONE], bytes(32)))
    with open_found(path) as model:
        os.truncate(path, path.stat().st_size - 4)
        name = list(model.tensors)[-1]
        with pytest.raises(PoloError, match="ends too early"):
            model.values(name)
