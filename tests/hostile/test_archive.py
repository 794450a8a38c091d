"""What a hostile bundle tries on whoever opens it: the reader takes one form and no other."""

import hashlib
import io
import os
import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.errors import LimitError, PoloError, StoreError
from polo.protocol import canonical
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import Bundle, File
from polo.storage.archive import BLOCK, RECORD, header
from polo.storage.bundle import glance, opened, read_bundle, whole, write_bundle
from polo.storage.folder import ProofFolder

GOLDEN = Path(__file__).parents[2] / "vectors" / "golden"
BUYER = Bundle("buyer", (3,))
FIELDS = {
    "name": (0, 100),
    "mode": (100, 8),
    "uid": (108, 8),
    "gid": (116, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "chksum": (148, 8),
    "type": (156, 1),
    "linkname": (157, 100),
    "magic": (257, 8),
    "uname": (265, 32),
    "gname": (297, 32),
    "devmajor": (329, 8),
    "devminor": (337, 8),
    "prefix": (345, 155),
    "rest": (500, 12),
}
Members = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def proof() -> ProofFolder:
    return ProofFolder(GOLDEN / "v1")


@pytest.fixture(scope="module")
def good(proof: ProofFolder, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bundle") / "good.polo"
    write_bundle(proof, path, BUYER)
    return path.read_bytes()


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], PoloError]:
    """Feeds bytes to the reader, which must refuse them and leave nothing behind."""
    path = tmp_path / "hostile.polo"

    def feed(data: bytes) -> PoloError:
        path.write_bytes(data)
        with pytest.raises(PoloError) as caught:
            read_bundle(path, tmp_path / "out")
        assert os.listdir(tmp_path) == ["hostile.polo"]
        return caught.value

    return feed


def members(data: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]


def pack(parts: Members) -> bytes:
    data = b"".join(
        header(name, len(body)) + body + bytes(-len(body) % BLOCK) for name, body in parts
    )
    data += bytes(2 * BLOCK)
    return data + bytes(-len(data) % RECORD)


def headers(data: bytes) -> list[int]:
    """Where the headers are."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [member.offset for member in tar]


def with_checksum(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def test_the_builder_builds_what_the_writer_writes(good: bytes, tmp_path: Path) -> None:
    assert pack(members(good)) == good
    (tmp_path / "a.polo").write_bytes(good)
    assert read_bundle(tmp_path / "a.polo", tmp_path / "out") == BUYER


@pytest.mark.slow
def test_every_byte_of_every_header(good: bytes, refused: Callable[[bytes], PoloError]) -> None:
    for start in headers(good):
        for at in range(start, start + BLOCK):
            refused(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_with_a_right_checksum(
    good: bytes, refused: Callable[[bytes], PoloError], name: str
) -> None:
    start, length = FIELDS[name]
    drawing = random.Random(name)
    for at in headers(good):
        block = good[at : at + BLOCK]
        values = [b"\0" * length, b" " * length, b"7" * length, b"\xff" * length]
        values += [b"\x80" + b"\0" * (length - 1), drawing.randbytes(length)]
        for value in values:
            changed = block[:start] + value + block[start + length :]
            changed = changed if name == "chksum" else with_checksum(changed)
            if changed != block:
                refused(good[:at] + changed + good[at + BLOCK :])


@pytest.mark.parametrize("kind", [b"\0", *(bytes([c]) for c in b"1234567DKLMNSVxgXA")])
def test_links_devices_folders_and_extensions(
    good: bytes, refused: Callable[[bytes], PoloError], kind: bytes
) -> None:
    for at in headers(good):
        block = with_checksum(good[at : at + 156] + kind + good[at + 157 : at + BLOCK])
        refused(good[:at] + block + good[at + BLOCK :])


@pytest.mark.parametrize(
    "size",
    [
        b"-0000000001\0",
        b"77777777777\0",
        b"777777777777",
        b"00000000000 ",
        b"          0\0",
        b"0000000008a\0",
        b"\x80" + bytes(10) + b"\x01",
        b"\x80" + b"\xff" * 11,
        b"\xff" * 12,
        b"\xff" * 11 + b"\xfe",
    ],
)
def test_sizes_that_are_none(
    good: bytes, refused: Callable[[bytes], PoloError], size: bytes
) -> None:
    for at in headers(good):
        block = with_checksum(good[at : at + 124] + size + good[at + 136 : at + BLOCK])
        refused(good[:at] + block + good[at + BLOCK :])


def test_a_small_size_in_the_form_of_large_ones(
    good: bytes, refused: Callable[[bytes], PoloError]
) -> None:
    for at in headers(good):
        size = int(good[at + 124 : at + 135], 8)
        block = good[at : at + 124] + b"\x80" + size.to_bytes(11, "big")
        block = with_checksum(block + good[at + 136 : at + BLOCK])
        refused(good[:at] + block + good[at + BLOCK :])


def test_truncation(good: bytes, refused: Callable[[bytes], PoloError]) -> None:
    lengths = [*range(0, len(good), BLOCK), *range(1, len(good), 1999), len(good) - 1]
    for length in lengths:
        error = refused(good[:length])
        wanted = "is no bundle" if length < 12 else "the file ends too early"
        assert error.message == wanted, length


@pytest.mark.parametrize("more", [b"\0", b"x", bytes(BLOCK), bytes(RECORD), b"x" * RECORD])
def test_nothing_follows(good: bytes, refused: Callable[[bytes], PoloError], more: bytes) -> None:
    assert "something follows" in refused(good + more).message


def test_padding_is_zero(good: bytes, refused: Callable[[bytes], PoloError]) -> None:
    with tarfile.open(fileobj=io.BytesIO(good)) as tar:
        ends = [member.offset_data + member.size for member in tar]
    places = {at for end in ends for at in (end, end + -end % BLOCK - 1) if end % BLOCK}
    for at in [*places, *range(ends[-1] + -ends[-1] % BLOCK, len(good), 100), len(good) - 1]:
        assert not good[at]
        refused(good[:at] + b"\x01" + good[at + 1 :])


def test_members_in_another_order_missing_or_twice(
    good: bytes, refused: Callable[[bytes], PoloError]
) -> None:
    parts = members(good)
    for at in range(len(parts)):
        refused(pack(parts[:at] + parts[at + 1 :]))
        refused(pack(parts[: at + 1] + parts[at:]))
        for other in range(at):
            swapped = parts.copy()
            swapped[at], swapped[other] = swapped[other], swapped[at]
            refused(pack(swapped))
    refused(pack([]))
    refused(pack([*parts, ("nonces/000002.json", b"{}")]))
    refused(pack([parts[0], ("stray", b""), *parts[1:]]))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/cron.d/x",
        "../outside",
        "nonces/../../outside",
        "./manifest.json",
        "nonces//000003.json",
        "NONCES/000003.json",
        "nonces/000003.json/",
        "nonces\\000003.json",
        "nonces/000003.json\0/../../x",
        "ancestors/000001/bundle.json",
        "a" * 100,
    ],
)
def test_names_that_lead_elsewhere(
    good: bytes, refused: Callable[[bytes], PoloError], name: str
) -> None:
    parts = members(good)
    for at, (_, body) in enumerate(parts):
        refused(pack([*parts[:at], (name, body), *parts[at + 1 :]]))
        refused(pack([*parts[:at], (name, body), *parts[at:]]))
    refused(pack([*parts, (name, b"body")]))


def hostile_tar(parts: Members, form: int, **options: Any) -> bytes:
    """A tar of the standard library's with an oddity in each member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, body in parts:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            for key, value in options.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(body))
    return out.getvalue()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        (tarfile.USTAR_FORMAT, {}),
        (tarfile.PAX_FORMAT, {}),
        (tarfile.PAX_FORMAT, {"pax_headers": {"size": "0"}}),
        (tarfile.PAX_FORMAT, {"pax_headers": {"path": "../../x"}}),
        (tarfile.PAX_FORMAT, {"pax_headers": {"GNU.sparse.major": "1"}}),
        (tarfile.GNU_FORMAT, {"name": "n" * 300}),
        (tarfile.GNU_FORMAT, {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        (tarfile.GNU_FORMAT, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        (tarfile.GNU_FORMAT, {"type": tarfile.GNUTYPE_SPARSE}),
        (tarfile.GNU_FORMAT, {"uname": "root"}),
        (tarfile.GNU_FORMAT, {"mode": 0o4755}),
        (tarfile.GNU_FORMAT, {"mtime": 1}),
    ],
    ids=str,
)
def test_other_tars(
    good: bytes, refused: Callable[[bytes], PoloError], form: int, options: dict[str, Any]
) -> None:
    refused(hostile_tar(members(good), form, **options))


def test_contents_that_were_not_signed(good: bytes, refused: Callable[[bytes], PoloError]) -> None:
    parts = members(good)
    for at, (name, body) in enumerate(parts):
        for changed in (body + b" ", body[:-1], b"", body[:-1] + bytes([body[-1] ^ 1])):
            if name == "manifest.json" and len(changed) == len(body):
                continue  # Another signature, which is for the verifier to refuse.
            refused(pack([*parts[:at], (name, changed), *parts[at + 1 :]]))


def test_a_bundle_that_claims_to_show_more_or_less(
    good: bytes, refused: Callable[[bytes], PoloError]
) -> None:
    rest = members(good)[1:]
    for other in (
        Bundle("public", ()),
        Bundle("buyer", (1, 3)),
        Bundle("buyer", (1,)),
        Bundle("buyer", (4,)),
        Bundle("verifier", (1, 2, 3)),
        Bundle("verifier", (3,)),
    ):
        refused(pack([("bundle.json", other.to_bytes()), *rest]))
    long = canonical.encode({**BUYER.to_json(), "shards": list(range(1, 10_001))})
    refused(pack([("bundle.json", long), *rest]))
    assert isinstance(refused(pack([("bundle.json", bytes(200_000)), *rest])), LimitError)


@pytest.mark.parametrize("size", [2**20, 2**40, 2**49])
def test_a_manifest_that_lists_a_huge_file(
    proof: ProofFolder, good: bytes, refused: Callable[[bytes], PoloError], size: int
) -> None:
    parts = dict(members(good))
    manifest = proof.manifest()
    for path in ("nonces/000003.json", "openings/000003.safetensors", "layout.json"):
        files = tuple(
            File(path, size, file.sha256) if file.path == path else file for file in manifest.files
        )
        lie = replace(manifest, files=files).to_bytes()
        refused(pack(list({**parts, "manifest.json": lie}.items())))
        # The header lies, too; the bytes are not there.
        data = pack(list({**parts, "manifest.json": lie}.items()))
        at = data.index(header(path, len(parts[path])))
        refused(data[:at] + header(path, size) + data[at + BLOCK :])


def test_a_manifest_that_lists_a_file_twice(
    proof: ProofFolder, good: bytes, refused: Callable[[bytes], PoloError]
) -> None:
    manifest = proof.manifest()
    parts = members(good)
    for files in (
        (*manifest.files, manifest.files[-1]),
        manifest.files[::-1],
        tuple(file for file in manifest.files if file.path != "layout.json"),
    ):
        lie = replace(manifest, files=files).to_bytes()
        refused(pack([parts[0], ("manifest.json", lie), *parts[2:]]))


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"PK\x03\x04" + bytes(600), "zip"),
        (b"\x1f\x8b\x08" + bytes(600), "gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), "zstandard"),
        (b'{"format":"polo/proof/1"}', "JSON"),
        (b"", "is no bundle"),
        (b"#!/bin/sh\n", "is no bundle"),
        (bytes(RECORD), "is no bundle"),
    ],
)
def test_files_that_are_no_bundle(
    refused: Callable[[bytes], PoloError], begin: bytes, words: str
) -> None:
    error = refused(begin)
    assert isinstance(error, StoreError)
    assert words in error.message
    assert "polo export" in error.advice


def test_odd_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "nothing"):
        with pytest.raises(StoreError):
            read_bundle(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_verdict_never_raises(good: bytes, tmp_path: Path) -> None:
    trust = GOLDEN / "issuer.pub"
    drawing = random.Random(1)
    path = tmp_path / "a.polo"
    path.write_bytes(good)
    assert polo.verify(path, trust=trust).outcome is polo.Outcome.ACCEPTED
    for _ in range(40):
        data = bytearray(good)
        for _ in range(drawing.choice((1, 1, 1, 50))):
            data[drawing.randrange(len(data))] ^= 1 << drawing.randrange(8)
        path.write_bytes(data[: drawing.choice((len(data), drawing.randrange(len(data))))])
        verdict = polo.verify(path, trust=trust)
        assert verdict.outcome is not polo.Outcome.ACCEPTED
        with pytest.raises(PoloError), opened(path) as folder:
            assert not folder


def test_a_random_file_of_zeros_costs_nothing(tmp_path: Path) -> None:
    with (tmp_path / "zeros.polo").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(StoreError):
        glance(tmp_path / "zeros.polo")
    with (tmp_path / "a.polo").open("wb") as file:
        file.write(header("bundle.json", 2**41))
        file.truncate(2**42)
    with pytest.raises(LimitError):
        read_bundle(tmp_path / "a.polo", tmp_path / "out")


LARGE = 64 * 2**20


def large_bundle(proof: ProofFolder, tmp_path: Path) -> Path:
    """A bundle with one large checkpoint, zeros throughout."""
    from polo.weights.files import header_of

    layout = Layout(CHUNK_BYTES, (Tensor("weight", "F32", (LARGE // 4,)),), ())
    folder = tmp_path / "large"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "layout.json").write_bytes(layout.to_bytes())
    with (folder / "checkpoints" / "000000.safetensors").open("wb") as file:
        file.write(header_of(layout))
        file.truncate(len(header_of(layout)) + LARGE)
    files = []
    for name in ("checkpoints/000000.safetensors", "layout.json"):
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        files.append(File(name, (folder / name).stat().st_size, digest))
    manifest = replace(proof.manifest(), shards=(), files=tuple(files))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    write_bundle(ProofFolder(folder), tmp_path / "large.polo", whole(manifest))
    return tmp_path / "large.polo"


def test_memory_stays_small_whatever_the_size(
    proof: ProofFolder, tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    path = large_bundle(proof, tmp_path)
    code = """
import resource, sys
from pathlib import Path
from polo.storage.bundle import read_bundle, whole, write_bundle
from polo.storage.folder import ProofFolder
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 24 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
read_bundle(sys.argv[1], sys.argv[2])
proof = ProofFolder(sys.argv[2])
write_bundle(proof, sys.argv[3], whole(proof.manifest()))
try:
    bytearray(32 * 2**20)
except MemoryError:
    print("the limit holds")
"""
    done = in_child(code, path, tmp_path / "out", tmp_path / "again.polo", bare=True)
    assert done.stdout == "the limit holds\n"
    assert (tmp_path / "again.polo").stat().st_size == path.stat().st_size > LARGE


@pytest.mark.parametrize("path", ["nonces/000003.json", "openings/000003.safetensors"])
def test_a_large_file_that_is_really_there(
    proof: ProofFolder, good: bytes, refused: Callable[[bytes], PoloError], path: str
) -> None:
    body = bytes(2**20)
    manifest = proof.manifest()
    lie = File(path, len(body), hashlib.sha256(body).digest())
    files = tuple(lie if file.path == path else file for file in manifest.files)
    changed = {"manifest.json": replace(manifest, files=files).to_bytes(), path: body}
    error = refused(pack(list({**dict(members(good)), **changed}.items())))
    assert isinstance(error, LimitError)
    assert error.place == path
