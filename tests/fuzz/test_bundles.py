"""Archives that were made to break whoever unpacks them, by name."""

import hashlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz import mutation, tar_files
from fuzz.tar_files import Member
from polo.errors import FormatError, PoloError
from polo.storage import archive, bundle
from polo.storage.folder import ProofFolder

Refused = Callable[..., str]
GOLDEN = Path(__file__).resolve().parents[2] / "vectors" / "golden" / "v1-thin"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    """The members of a real bundle."""
    path = tmp_path_factory.mktemp("bundle") / "golden.polo"
    folder = ProofFolder(GOLDEN)
    bundle.write_bundle(folder, path, bundle.whole(folder.manifest()))
    found = tar_files.split(path.read_bytes())
    assert tar_files.pack(found) == path.read_bytes()
    return found


def put(members: list[Member], at: int, *more: Member) -> bytes:
    return tar_files.pack([*members[:at], *more, *members[at:]])


def instead(members: list[Member], at: int, **changes: Any) -> bytes:
    return tar_files.pack([*members[:at], replace(members[at], **changes), *members[at + 1 :]])


def with_tarfile(
    members: list[Member], odd: tarfile.TarInfo, form: int, data: bytes = b""
) -> bytes:
    """A bundle that Python's own tarfile wrote, with an odd member after the manifest."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for at, member in enumerate(members):
            if at == 2:
                tar.addfile(odd, io.BytesIO(data))
            info = tarfile.TarInfo(member.name)
            info.size = len(member.data)
            tar.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def odd(name: str = "x", **changes: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


NAMES = {
    "a path upwards": "../escaped",
    "a path upwards from within": "nonces/../../escaped",
    "an absolute path": "/tmp/polo-escaped",
    "a drive": "C:\\escaped",
    "a share": "\\\\host\\escaped",
    "a dot": "./manifest.json",
    "two slashes": "nonces//000001.json",
    "nothing": "",
    "a folder": "nonces/",
    "a newline": "manifest.json\n",
    "an escape": "\x1b[2J",
    "right to left": "\u202enosj.tsefinam",
    "full width": "\uff4danifest.json",
    "no encoding": "\udcff",
    "a hundred characters": "x" * 100,
    "a stranger": "notes.txt",
    "a manifest again": "manifest.json",
    "a bundle record again": "bundle.json",
    "somebody before": "ancestors/000001/bundle.json",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [0, 2, -1])
def test_names(refused: Refused, tmp_path: Path, members: list[Member], name: str, at: int) -> None:
    path = tmp_path / "proof.polo"
    place = len(members) if at < 0 else at
    path.write_bytes(put(members, place, Member(NAMES[name], b"escaped")))
    refuse(refused, path)


def refuse(refused: Refused, path: Path, *, mib: int = 64) -> str:
    """Refused, and nothing is left of it or beside it."""
    text = refused("bundle", path, mib=mib)
    assert os.listdir(path.parent) == [path.name]
    assert not Path("/tmp/polo-escaped").exists()
    return text


KINDS: dict[str, Callable[[list[Member]], bytes]] = {
    "nothing": lambda m: b"",
    "zeros": lambda m: bytes(10_240),
    "a bundle record alone": lambda m: tar_files.pack(m[:1]),
    "a symbolic link": lambda m: put(m, 2, Member("layout.json", b"", ord("2"), "/etc/passwd")),
    "a link in the place of a file": lambda m: instead(m, 2, kind=ord("2"), link="/etc/passwd"),
    "a hard link": lambda m: put(m, 2, Member("layout.json", b"", ord("1"), "manifest.json")),
    "a hard link in the place of a file": lambda m: instead(m, 2, kind=ord("1"), link="../x"),
    "a character device": lambda m: instead(m, 2, kind=ord("3")),
    "a block device": lambda m: instead(m, 2, kind=ord("4")),
    "a folder": lambda m: put(m, 2, Member("nonces", b"", ord("5"))),
    "a pipe": lambda m: instead(m, 2, kind=ord("6")),
    "a continuous file": lambda m: instead(m, 2, kind=ord("7")),
    "an old kind of file": lambda m: instead(m, 2, kind=0),
    "a sparse file": lambda m: instead(m, 2, kind=ord("S")),
    "a volume": lambda m: put(m, 2, Member("x", b"", ord("V"))),
    "a file that goes on": lambda m: instead(m, 2, kind=ord("M")),
    "a long name": lambda m: put(m, 2, Member("././@LongLink", b"../x\0", ord("L"))),
    "a long link": lambda m: put(m, 2, Member("././@LongLink", b"../x\0", ord("K"))),
    "pax": lambda m: put(m, 2, Member("x", b"14 path=../x\n", ord("x"))),
    "pax for all": lambda m: put(m, 0, Member("x", b"14 path=../x\n", ord("g"))),
    "pax that makes it sparse": lambda m: with_tarfile(
        m,
        odd("layout.json", pax_headers={"GNU.sparse.realsize": "999999999999"}),
        tarfile.PAX_FORMAT,
    ),
    "a very long name by tarfile": lambda m: with_tarfile(m, odd("x" * 5000), tarfile.GNU_FORMAT),
    "a link by tarfile": lambda m: with_tarfile(
        m, odd("y", type=tarfile.SYMTYPE, linkname="/etc"), tarfile.USTAR_FORMAT
    ),
    "other formats of tar": lambda m: with_tarfile(m, odd("y"), tarfile.USTAR_FORMAT),
    "a size of 2^33": lambda m: instead(m, 2, size=2**33 - 1),
    "a size of 2^40 in binary": lambda m: instead(m, 2, size=2**40),
    "a size of 2^87": lambda m: instead(m, 2, size=2**87),
    "a size below zero": lambda m: instead(m, 2, changes={124: b"\xff" * 12}),
    "a size that is no number": lambda m: instead(m, 2, changes={124: b"12x45678901\0"}),
    "a size in full-width digits": lambda m: instead(m, 2, changes={124: "\uff11".encode() * 4}),
    "a size with spaces": lambda m: instead(m, 2, changes={124: b"        507 "}),
    "a size of one byte less": lambda m: instead(m, 2, size=len(m[2].data) - 1),
    "a manifest of 2^33 bytes": lambda m: instead(m, 1, size=2**33 - 1),
    "a bundle record of a megabyte": lambda m: instead(m, 0, data=bytes(2**20)),
    "a checksum that is wrong": lambda m: tar_files.pack(m).replace(b"ustar", b"ustax", 1),
    "another owner": lambda m: instead(m, 2, changes={108: b"0001750\0"}),
    "set-uid": lambda m: instead(m, 2, changes={100: b"0004755\0"}),
    "another time": lambda m: instead(m, 2, changes={136: b"00000000001\0"}),
    "a prefix": lambda m: instead(m, 2, changes={345: b"../.."}),
    "a NUL in a name": lambda m: instead(m, 2, name="layout.json\0../x"),
    "a member twice": lambda m: put(m, 3, m[2]),
    "the last member twice": lambda m: put(m, len(m), m[-1]),
    "members out of order": lambda m: tar_files.pack([*m[:3], *m[:2:-1]]),
    "a member left out": lambda m: tar_files.pack(m[:-1]),
    "another byte": lambda m: instead(m, -1 % len(m), data=m[-1].data[:-1] + b"?"),
    "bytes in the padding": lambda m: tar_files.pack(m)[:-1] + b"x",
    "a second archive": lambda m: tar_files.pack(m) * 2,
    "a gigabyte of zeros after it": lambda m: tar_files.pack(m) + bytes(10_240),
    "no end": lambda m: b"".join(member.pack() for member in m),
    "half an end": lambda m: b"".join(member.pack() for member in m) + bytes(512),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_archives(refused: Refused, tmp_path: Path, members: list[Member], name: str) -> None:
    path = tmp_path / "proof.polo"
    path.write_bytes(KINDS[name](members))
    refuse(refused, path)


def test_the_bundle_that_these_are_made_from_is_read(
    attempt: Callable[..., Any], tmp_path: Path, members: list[Member]
) -> None:
    path = tmp_path / "proof.polo"
    path.write_bytes(tar_files.pack(members))
    assert attempt("bundle", path)["end"] == "read"
    assert sorted(os.listdir(tmp_path)) == ["out", "proof.polo"]
    assert attempt("verify", path)["value"] == "ACCEPTED"


def test_a_sparse_file_of_a_terabyte(
    refused: Refused, tmp_path: Path, members: list[Member]
) -> None:
    path = tmp_path / "proof.polo"
    path.write_bytes(tar_files.pack(members))
    os.truncate(path, 2**40)
    refuse(refused, path)
    refused("glance", path.parent / "nothing", "nothing")


def test_many_checkpoints_of_many_tensors(
    refused: Refused, tmp_path: Path, members: list[Member]
) -> None:
    """Each checkpoint on the list once cost a walk over all tensors, before any signature."""
    layout = json.loads(members[2].data)
    layout["tensors"] = [
        {"name": f"{at:06d}", "dtype": "F32", "shape": [1]} for at in range(10_000)
    ]
    data = mutation.spell(layout)
    manifest = json.loads(members[1].data)
    manifest["shards"] = [{**manifest["shards"][0], "shard": at + 1} for at in range(1000)]
    manifest["files"] = [
        {"path": f"checkpoints/{at:06d}.safetensors", "size": 1, "sha256": "00" * 32}
        for at in range(1000)
    ]
    digest = hashlib.sha256(data).hexdigest()
    manifest["files"].append({"path": "layout.json", "size": len(data), "sha256": digest})
    record = {**json.loads(members[0].data), "shards": list(range(1, 1001))}
    path = tmp_path / "proof.polo"
    parts = zip(members, map(mutation.spell, (record, manifest, layout)), strict=False)
    path.write_bytes(tar_files.pack([replace(member, data=data) for member, data in parts]))
    assert "000000.safetensors" in refuse(refused, path)


def test_truncation_at_every_boundary(tmp_path: Path, members: list[Member]) -> None:
    data = tar_files.pack(members)
    path = tmp_path / "proof.polo"
    sizes = [len(member.pack()) for member in members]
    starts = [0, *itertools.accumulate(sizes)]
    ends = {*starts, *(at + 512 for at in starts), len(data) - 10_240, len(data)}
    near = {at + by for at in ends for by in (-1, 0, 1)} & set(range(len(data)))
    for size in sorted(near):
        path.write_bytes(data[:size])
        with pytest.raises(PoloError):
            bundle.read_bundle(path, tmp_path / "out")
        assert os.listdir(tmp_path) == [path.name]


def test_a_bundle_that_shrinks_while_it_is_unpacked(
    tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tar_files.pack(members)
    path = tmp_path / "proof.polo"
    plain = archive.ArchiveReader.enter
    for shrinks_at in range(1, len(members) + 1):
        path.write_bytes(data)
        entered = 0

        def enter(self: Any, name: str, most: int, at: int = shrinks_at) -> int:
            nonlocal entered
            entered += 1
            if entered == at:
                os.truncate(path, 600)
            return plain(self, name, most)

        monkeypatch.setattr(archive.ArchiveReader, "enter", enter)
        try:
            bundle.read_bundle(path, tmp_path / "out")
        except FormatError:
            assert os.listdir(tmp_path) == [path.name]
        else:
            # Read ahead already: then it is whole.
            assert len(list((tmp_path / "out").rglob("*.*"))) == len(members) - 1
            (tmp_path / "out").rename(tmp_path.with_name(f"whole{shrinks_at}"))
    assert entered
