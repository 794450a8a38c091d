"""Odd things in the place of files: pipes, devices, folders, links, names, sizes."""

import base64
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz import seeds
from fuzz.targets import opening
from polo.errors import FormatError
from polo.protocol.records import Manifest
from polo.storage import delta, openings
from polo.storage.folder import ProofFolder

Refused = Callable[..., str]
GOLDEN = Path(__file__).resolve().parents[2] / "vectors" / "golden"
SINGLE = ("header", "checkpoint", "found", "bundle", "glance", "public key", "private key")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**42)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "an empty file": lambda path: path.touch(),
    "a folder": lambda path: path.mkdir(),
    "a pipe": pipe,
    "a link to itself": loop,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a sparse file of four terabytes": huge,
}


@pytest.mark.parametrize("name", INSTEAD)
@pytest.mark.parametrize("kind", SINGLE)
def test_in_the_place_of_a_file(refused: Refused, tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / "input"
    INSTEAD[name](path)
    # Where the user chose the path, a link is followed and the error names what it leads to.
    refused(kind, path, "" if "link" in name else "input")


@pytest.mark.parametrize("kind", [kind for kind in SINGLE if kind != "bundle"])
@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/tty", "/proc/self/environ"])
def test_devices(refused: Refused, kind: str, name: str) -> None:
    refused(kind, name, name)


NAMES = {"a NUL": "a\0b", "too long": "x" * 300, "too deep": "x/" * 200, "no encoding": "\udcff"}


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_file_can_have(
    refused: Refused, tmp_path: Path, kind: str, name: str
) -> None:
    refused(kind, f"{tmp_path}/{NAMES[name]}")


@pytest.mark.parametrize("name", INSTEAD)
@pytest.mark.parametrize("file", ["enrolment.json", "nonces.json"])
def test_enrolments(refused: Refused, tmp_path: Path, file: str, name: str) -> None:
    folder = tmp_path / "enrolment"
    folder.mkdir()
    manifest = Manifest.from_bytes((GOLDEN / "v1/manifest.json").read_bytes(), "manifest.json")
    (folder / "enrolment.json").write_bytes(manifest.enrolment.to_bytes())
    (folder / "nonces.json").write_bytes(b"{}")
    (folder / file).unlink()
    INSTEAD[name](folder / file)
    refused("enrolment", folder, file)


# Proof folders


FILES = (
    "manifest.json",
    "layout.json",
    "nonces/000002.json",
    "openings/000002.safetensors",
    "checkpoints/000003.safetensors",
    "checkpoints/000001.delta.safetensors",
)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "v1", tmp_path / "in" / "proof"))


def verdict(attempt: Callable[..., Any], proof: Path) -> str:
    """What a verifier says, which never raises, runs long, or takes much memory."""
    result = attempt("verify", proof)
    assert result["end"] == "read", result
    assert result["mib"] < 96, result
    assert result["seconds"] < 5, result
    value: str = result["value"]
    return value


@pytest.mark.parametrize("name", INSTEAD)
@pytest.mark.parametrize("file", FILES)
def test_proofs(attempt: Callable[..., Any], proof: Path, file: str, name: str) -> None:
    (proof / file).unlink()
    INSTEAD[name](proof / file)
    said = verdict(attempt, proof)
    assert said.startswith(("REJECTED", "UNDECIDED")), said
    assert file in said


@pytest.mark.parametrize("folder", ["nonces", "openings", "checkpoints"])
@pytest.mark.parametrize("name", ["nothing", "an empty file", "a pipe", "a link to itself"])
def test_proofs_without_folders(
    attempt: Callable[..., Any], proof: Path, folder: str, name: str
) -> None:
    shutil.rmtree(proof / folder)
    INSTEAD[name](proof / folder)
    said = verdict(attempt, proof)
    assert said.startswith(("REJECTED", "UNDECIDED")), said
    assert folder in said


def test_a_folder_that_is_a_link_elsewhere(attempt: Callable[..., Any], proof: Path) -> None:
    shutil.move(proof / "nonces", proof.parent / "nonces")
    (proof / "nonces").symlink_to(proof.parent / "nonces")
    assert verdict(attempt, proof).startswith("REJECTED")


def test_a_hard_link_is_a_file_like_any_other(attempt: Callable[..., Any], proof: Path) -> None:
    (proof.parent / "elsewhere").hardlink_to(proof / "nonces/000001.json")
    assert verdict(attempt, proof) == "ACCEPTED"
    os.truncate(proof.parent / "elsewhere", 3)
    assert verdict(attempt, proof).startswith("REJECTED")


STRANGERS = {
    "upwards": "..x",
    "a drive": "C:\\x",
    "a newline": "manifest.json\n",
    "right to left": "\u202enosj.x",
    "full width": "\uff4danifest.json",
    "another normal form": "e\u0301",
    "no encoding": "\udcff",
    "255 bytes": "x" * 255,
    "markup": "<script>alert(1)</script>",
    "rich markup": "[red]ACCEPTED[",
    "a leftover": "manifest.json.partial",
    "a checkpoint of nobody": "checkpoints/000009.safetensors",
    "a proof in the proof": "ancestors/000001",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_strange_names(attempt: Callable[..., Any], proof: Path, name: str) -> None:
    (proof / STRANGERS[name]).parent.mkdir(exist_ok=True)
    (proof / STRANGERS[name]).touch()
    assert verdict(attempt, proof).startswith("REJECTED")


def test_folders_two_hundred_deep(attempt: Callable[..., Any], proof: Path) -> None:
    (proof / "/".join("x" * 200)).mkdir(parents=True)
    (proof / "nonces" / "/".join("x" * 200)).mkdir(parents=True)
    assert verdict(attempt, proof).startswith("REJECTED")


@pytest.mark.parametrize("file", FILES)
def test_truncated_files_of_a_proof(attempt: Callable[..., Any], proof: Path, file: str) -> None:
    size = (proof / file).stat().st_size
    for cut in (0, 1, 7, 8, 9, size // 2, size - 1):
        os.truncate(proof / file, cut)
        said = verdict(attempt, proof)
        assert said.startswith("REJECTED"), said
        shutil.copyfile(GOLDEN / "v1" / file, proof / file)


def cuts(data: bytes) -> tuple[int, ...]:
    """Sizes to cut a file to: around its header, in the middle, and just before its end."""
    return (*range(0, 300, 7), len(data) // 2, len(data) - 1)


def test_openings_cut_short(tmp_path: Path) -> None:
    layout = seeds.layout()
    where = opening.wanted()[2]
    data = (seeds.GOLDEN / f"openings/{opening.SHARD:06d}.safetensors").read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(data)
    assert openings.load(path, layout, where, place="whole")
    for size in cuts(data):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match="cut"):
            openings.load(path, layout, where, place="cut")


def test_deltas_cut_short(tmp_path: Path) -> None:
    folder = ProofFolder(seeds.GOLDEN)
    data = folder.file("checkpoints/000002.delta.safetensors").read_bytes()
    path = tmp_path / "cut"
    with folder.checkpoint(3, seeds.layout()) as newer:
        path.write_bytes(data)
        delta.apply_delta(path, newer, lambda piece: None, place="whole")
        for size in cuts(data):
            path.write_bytes(data[:size])
            with pytest.raises(FormatError, match="cut"):
                delta.apply_delta(path, newer, lambda piece: None, place="cut")


# Key files


def armour(inner: bytes, kind: str = "PRIVATE KEY") -> bytes:
    body = base64.encodebytes(inner)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (kind.encode(), body, kind.encode())


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def scrypt(cost: int) -> bytes:
    """A key locked by scrypt at a cost."""
    salt, numbers = der(4, bytes(16)), [cost, 8, 1]
    integers = [der(2, b"\0" + number.to_bytes(6, "big")) for number in numbers]
    derive = der(0x30, der(6, bytes.fromhex("2b06010401da47040b")), der(0x30, salt, *integers))
    cipher = der(0x30, der(6, bytes.fromhex("60864801650304012a")), der(4, bytes(16)))
    scheme = der(0x30, der(6, bytes.fromhex("2a864886f70d01050d")), der(0x30, derive, cipher))
    return der(0x30, scheme, der(4, bytes(64)))


PUBLIC = (GOLDEN / "issuer.pub").read_bytes()
KEYS = {
    "nothing": b"",
    "armour around nothing": armour(b""),
    "zeros": bytes(64),
    "17 KiB": armour(bytes(17 * 1024)),
    "text": b"no key at all\n",
    "cut": PUBLIC[:60],
    "a point that is none": armour(
        der(0x30, der(0x30, der(6, b"\x2b\x65\x70")), der(3, bytes(33)))
    ),
    "nested a thousand deep": armour(b"\x30\x80" * 1000),
    "a length of 2^63": armour(b"\x30\x88\x7f" + b"\xff" * 7),
    "locked by scrypt that takes a terabyte": armour(scrypt(2**30), "ENCRYPTED PRIVATE KEY"),
    "locked by nothing known": armour(der(0x30, der(0x30), der(4)), "ENCRYPTED PRIVATE KEY"),
    "two keys": armour(b"\0") * 2,
    "NULs in the armour": PUBLIC.replace(b"-----BEGIN", b"-----\0BEGIN"),
}


@pytest.mark.parametrize("name", KEYS)
def test_key_files(refused: Refused, tmp_path: Path, name: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEYS[name])
    for kind in ("public key", "private key", "locked key"):
        refused(kind, path, "key")


def test_the_key_that_these_are_like_is_read(attempt: Callable[..., Any]) -> None:
    assert attempt("public key", GOLDEN / "issuer.pub")["end"] == "read"
