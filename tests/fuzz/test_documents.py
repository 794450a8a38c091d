"""JSON that was made to break a reader, by name; in a child with little memory and time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polo.protocol import canonical

GOLDEN = Path(__file__).resolve().parents[2] / "vectors" / "golden" / "v1"
MANIFEST = (GOLDEN / "manifest.json").read_bytes()
LAYOUT = (GOLDEN / "layout.json").read_bytes()


def spelled(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def with_tensors(*tensors: Any) -> bytes:
    return spelled({**json.loads(LAYOUT), "tensors": list(tensors)})


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "dtype": "F32", "shape": [2], **changes}


JSON = {
    "nothing": b"",
    "NaN": b"[NaN]",
    "infinity": b"[Infinity]",
    "minus infinity": b"[-Infinity]",
    "1e999": b"[1e999]",
    "a float": b"[0.5]",
    "minus zero": b"[-0]",
    "a leading zero": b"[01]",
    "a huge integer": b"[" + b"9" * 400 + b"]",
    "an integer of a million digits": b"[" + b"9" * 10**6 + b"]",
    "2^53": b"[9007199254740992]",
    "a key twice": b'{"a":1,"a":1}',
    "a key twice, once escaped": b'{"a":1,"\\u0061":1}',
    "100,000 brackets": b"[" * 100_000 + b"]" * 100_000,
    "100,000 open brackets": b"[" * 100_000,
    "100,000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "seventeen deep": b"[" * 18 + b"]" * 18,
    "a lone surrogate": b'["\\ud800"]',
    "a lone surrogate as a key": b'{"\\udfff":1}',
    "a surrogate in UTF-8": b'["\xed\xa0\x80"]',
    "overlong UTF-8": b'["\xc0\xaf"]',
    "a byte order mark": b"\xef\xbb\xbf[]",
    "UTF-16": '["a"]'.encode("utf-16"),
    "white space": b"[ ]",
    "a newline at the end": b"[]\n",
    "two documents": b"[][]",
    "a comment": b"[]//x",
    "a NUL": b"[]\x00",
    "single quotes": b"['a']",
    "two million values": b"[" + b"1," * 2_000_000 + b"1]",
    "a million little lists": b"[" + b"[]," * 1_000_000 + b"[]]",
    "a document of 17 MiB": b'["' + b"a" * (17 * 2**20) + b'"]',
    "a string that never ends": b'["' + b"\\" * 2**20,
}


@pytest.mark.parametrize("name", JSON)
def test_json(refused: Callable[..., str], tmp_path: Path, name: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(JSON[name])
    refused("document", path, "record.json", mib=96)
    refused("manifest", path, "record.json", mib=96)


RECORDS = {
    "no object": b"[]",
    "another format": LAYOUT.replace(b"polo/layout/1", b"polo/layout/2"),
    "the format of a manifest": LAYOUT.replace(b"polo/layout/1", b"polo/proof/1"),
    "a format that is a million words": spelled({"format": ["x" * 10] * 10**5}),
    "no tensors": with_tensors(),
    "a tensor twice": with_tensors(tensor(), tensor()),
    "tensors out of order": with_tensors(tensor(name="b"), tensor(name="a")),
    "names that differ in their normal form": with_tensors(
        tensor(name="e\u0301"), tensor(name="\u00e9"), tensor(name="e\u0301")
    ),
    "a dimension of 2^48 + 1": with_tensors(tensor(shape=[2**48 + 1])),
    "dimensions of 2^48": with_tensors(tensor(shape=[2**48] * 32)),
    "a million dimensions": with_tensors(tensor(shape=[1] * 10**6)),
    "33 dimensions": with_tensors(tensor(shape=[1] * 33)),
    "a negative dimension": with_tensors(tensor(shape=[-1])),
    "a dimension that is true": with_tensors(tensor(shape=[True])),
    "100,001 tensors": with_tensors(*(tensor(name=f"{n:06d}") for n in range(100_001))),
    "2^49 bytes": with_tensors(tensor(name="a", shape=[2**46]), tensor(name="b", shape=[2**46])),
    "an unknown type": with_tensors(tensor(dtype="F128")),
    "a type in lower case": with_tensors(tensor(dtype="f32")),
    "a name of 513 characters": with_tensors(tensor(name="x" * 513)),
    "a name with a NUL": with_tensors(tensor(name="a\x00b")),
    "a name with an escape": with_tensors(tensor(name="\x1b[2J")),
    "the name of the metadata": with_tensors(tensor(name="__metadata__")),
    "a tie to itself": spelled({**json.loads(LAYOUT), "ties": [{"alias": "x", "name": "x"}]}),
    "another chunk": spelled({**json.loads(LAYOUT), "chunk": 2**40}),
}


@pytest.mark.parametrize("name", RECORDS)
def test_layouts(refused: Callable[..., str], tmp_path: Path, name: str) -> None:
    path = tmp_path / "layout.json"
    path.write_bytes(RECORDS[name])
    refused("layout", path, "layout.json", mib=192)


def changed(*way: Any, to: Any) -> bytes:
    document = json.loads(MANIFEST)
    inner = document
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = to
    return spelled(document)


MANIFESTS = {
    "2^31 bits": changed("enrolment", "terms", "scheme", "bits", to=2**31),
    "2^53 shards": changed("enrolment", "terms", "shards", "most", to=2**53 - 1),
    "10,001 shards": changed("shards", to=[json.loads(MANIFEST)["shards"][0]] * 10_001),
    "40,001 files": changed("files", to=[json.loads(MANIFEST)["files"][0]] * 40_001),
    "a path upwards": changed("files", 0, "path", to="../layout.json"),
    "an absolute path": changed("files", 0, "path", to="/etc/passwd"),
    "a path with a drive": changed("files", 0, "path", to="C:\\layout.json"),
    "a path with a NUL": changed("files", 0, "path", to="layout.json\x00"),
    "a path with a newline": changed("files", 0, "path", to="layout.json\n"),
    "a long path": changed("files", 0, "path", to="checkpoints/" + "0" * 10**6),
    "full-width digits": changed("files", 0, "path", to=f"nonces/{chr(0xFF10) * 6}.json"),
    "a file of 2^50 bytes": changed("files", 0, "size", to=2**50),
    "a signature in capitals": changed("signature", to="AB" * 64),
    "65 metrics": changed("shards", 0, "metrics", to={f"m{n}": 0 for n in range(65)}),
    "a metric named by an escape": changed("shards", 0, "metrics", to={"\x1b[2J": 0}),
    "no bits per block": changed("enrolment", "terms", "scheme", "load", to=1),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(refused: Callable[..., str], tmp_path: Path, name: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(MANIFESTS[name])
    refused("manifest", path, "manifest.json", mib=192)


def test_the_documents_that_these_are_made_from_are_read(
    attempt: Callable[..., Any], tmp_path: Path
) -> None:
    for kind, data in (("manifest", MANIFEST), ("layout", LAYOUT), ("document", MANIFEST)):
        (tmp_path / kind).write_bytes(data)
        assert attempt(kind, tmp_path / kind)["end"] == "read"


@pytest.mark.parametrize("data", [MANIFEST, LAYOUT], ids=["manifest", "layout"])
def test_truncation_anywhere(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(canonical.FormatError, match="cut"):
            canonical.parse(data[:size], place="cut")
