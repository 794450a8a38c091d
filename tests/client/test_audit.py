"""Auditing a log that a folder serves: honest ones pass, and what is wrong is named."""

import functools
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from polo import cli
from polo.client.audit import Audited, Report, audit
from polo.client.http import Patience
from polo.client.log_reader import LogReader
from polo.errors import FormatError, RegistryError, SignatureError
from polo.keys import Identity
from polo.protocol import log_notes, log_tiles, log_tree, signing
from polo.protocol.entries import Entry, leaf_hash
from polo.protocol.log_notes import Checkpoint, Note, NoteKey
from polo.protocol.log_tiles import Tile
from polo.protocol.records import (
    Enrolment,
    FinishRecord,
    Manifest,
    NoiseRecord,
    NonceTerms,
    Shard,
    Start,
)

GOLDEN = Path(__file__).resolve().parents[2] / "vectors" / "golden" / "v1" / "manifest.json"
ORIGIN = "registry.example/log"


def key_of(number: int) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


LOG, PROVER, OTHER = key_of(50), key_of(51), key_of(52)
KEY = NoteKey(ORIGIN, LOG.public_key)


@functools.cache
def enrolment(number: int) -> Enrolment:
    terms = Manifest.from_bytes(GOLDEN.read_bytes(), "manifest").terms
    live = NonceTerms("live", number.to_bytes(32, "big"), 0)
    bare = Enrolment(terms, PROVER.public_key, live, 1_800_000_000, OTHER.public_key)
    return signing.sign(bare, OTHER)


def root_of(chain: int, shard: int) -> bytes:
    return chain.to_bytes(16, "big") + shard.to_bytes(16, "big")


@functools.cache
def entry(chain: int, number: int, **changes: Any) -> Entry:
    digest = enrolment(chain).digest
    if not number:
        start = Start(root_of(chain, 0), bytes(32), None)
        return signing.sign(Entry(digest, start, None, None), PROVER)
    shard = Shard(
        number, root_of(chain, number - 1), root_of(chain, number), 1, 8, 120, {},
        FinishRecord(0, 0), NoiseRecord(0, bytes(32)), {}, 1_800_000_000, None,
    )  # fmt: skip
    shard = replace(shard, **changes)
    return signing.sign(Entry(digest, None, shard, bytes(32)), PROVER)


def usual(count: int) -> list[bytes]:
    """Entries of chains that take turns: twelve at a time, fifty shards each."""
    found = []
    for at in range(count):
        group, within = divmod(at, 600)
        number, chain = divmod(within, 12)
        found.append(entry(12 * group + chain, number).to_bytes())
    return found


class Served:
    """A folder that is a registry's log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    def path(self, name: str) -> Path:
        # Addresses end in what a file system takes for a folder of the same name.
        place = self.folder / "log" / f"{name}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def write(self, entries: list[bytes], *, signer: Identity = LOG, bundles: bool = True) -> None:
        """Publish a log of these entries."""
        size = len(entries)
        frontier, nodes = log_tree.Frontier().grown(map(leaf_hash, entries))
        kept = {(item.level, item.index): item.hash for item in nodes}
        for level in (0, 1, 2):
            for tile in log_tiles.tiles_of(size, level):
                data = log_tiles.tile_bytes(tile, lambda *at: kept[at])
                self.path(tile.path).write_bytes(data)
        for tile in log_tiles.tiles_of(size, None) if bundles else ():
            part = entries[tile.start : tile.start + tile.width]
            self.path(tile.path).write_bytes(log_tiles.bundle_bytes(part))
        self.sign(Checkpoint(ORIGIN, size, frontier.root), signer)

    def sign(self, head: Checkpoint, signer: Identity = LOG) -> None:
        self.path("checkpoint").write_text(str(log_notes.sign_checkpoint(head, signer)))

    def note(self) -> Note:
        return Note.parse(self.path("checkpoint").read_text(), place="checkpoint")

    def edit(self, index: int, data: bytes, size: int) -> None:
        """Change an entry where entries are served, and nowhere else."""
        tile = next(t for t in log_tiles.tiles_of(size, None) if t.index == index // 256)
        place = self.path(tile.path)
        entries = log_tiles.entries_of(place.read_bytes(), tile)
        entries[index % 256] = data
        place.write_bytes(log_tiles.bundle_bytes(entries))

    def audit(self, **options: Any) -> Report:
        reader = LogReader(self.url, patience=Patience(tries=1))
        try:
            return audit(reader, options.pop("key", KEY), **options)
        finally:
            reader.close()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the folder, and enrolments."""

    served: Served
    asked: list[str]
    hidden: set[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        data = self.answer()
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def answer(self) -> bytes | None:
        if self.path.startswith("/v1/enrolments/"):
            digest = self.path.rpartition("/")[2]
            for number in range(40):
                if enrolment(number).digest.hex() == digest and digest not in self.hidden:
                    return json.dumps({"enrolment": enrolment(number).to_json()}).encode()
            return None
        if self.path == "/v1/keys":
            return json.dumps({"origin": "registry.example", "log": KEY.text}).encode()
        place = self.served.path(self.path.removeprefix("/log/"))
        return place.read_bytes() if place.is_file() else None

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    log = Served(tmp_path / "registry")
    kind = type("Own", (Handler,), {"served": log, "asked": [], "hidden": set()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    log.url = f"http://127.0.0.1:{server.server_port}"
    log.asked, log.hidden = kind.asked, kind.hidden  # type: ignore[attr-defined]
    yield log
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("size", [1, 255, 256, 257, 700])
def test_an_honest_log_is_found_to_be_one(served: Served, size: int) -> None:
    served.write(usual(size))
    report = served.audit()
    assert report.findings == []
    assert (report.read, report.unsigned) == (size, 0)
    assert report.chains == min(size, 12) + max(0, min(size - 600, 12))
    assert report.audited is not None
    assert report.audited.size == size


def test_the_next_audit_reads_only_what_is_new(served: Served) -> None:
    served.write(usual(600))
    first = served.audit()
    assert first.audited is not None
    kept = Audited.from_bytes(first.audited.to_bytes(), "kept")
    served.write(usual(700))
    served.asked.clear()  # type: ignore[attr-defined]
    report = served.audit(before=kept)
    assert report.findings == []
    assert (report.since, report.read, report.chains) == (600, 100, 24)
    tiles = [path for path in served.asked if "/log/tile/" in path]  # type: ignore[attr-defined]
    assert sorted(tiles) == ["/log/tile/0/002.p/188", "/log/tile/entries/002.p/188"]
    again = served.audit(before=report.audited)
    assert (again.read, again.findings) == (0, [])


def named(report: Report) -> list[tuple[int | None, str]]:
    return [(item.entry, item.detail) for item in report.findings]


def test_an_edited_entry_is_named(served: Served) -> None:
    entries = usual(600)
    served.write(entries)
    served.edit(300, entry(0, 25, steps=9).to_bytes(), 600)
    found = named(served.audit())
    assert (300, "it is not what the tree was made of") in found
    assert (None, "its entries do not lead to the root that it signed") in found
    assert {index for index, _ in found if index is not None} == {256, 300}


def test_a_rewritten_log_is_found_by_who_audited_it_before(served: Served) -> None:
    entries = usual(600)
    served.write(entries)
    before = served.audit().audited
    entries[20] = entry(8, 1, steps=9).to_bytes()
    served.write([*entries, *usual(640)[600:]])
    # By itself the new log is in order; it is only not the one that was there.
    assert served.audit().findings == []
    found = named(served.audit(before=before))
    assert found[0] == (None, "its entries do not lead to the root that it signed")
    assert found[1] == (0, "it or one of the 255 after it was changed since the last audit")


def test_an_entry_after_the_last_whole_tile_is_named_exactly(served: Served) -> None:
    entries = usual(600)
    served.write(entries)
    before = served.audit().audited
    entries[590] = entry(2, 49, steps=9).to_bytes()
    served.write(entries)
    assert (590, "it is another than at the last audit") in named(served.audit(before=before))


def test_a_fork_is_found_by_an_older_checkpoint(served: Served) -> None:
    entries = usual(600)
    served.write(entries[:450])
    older = served.note()
    served.write(entries)
    assert served.audit(since=[older]).findings == []
    entries[20] = entry(8, 1, steps=9).to_bytes()
    served.write(entries)
    ((index, detail),) = named(served.audit(since=[older]))
    assert index is None
    assert "it was forked: the log of 450 entries is not the beginning" in detail


def test_a_log_that_lost_entries(served: Served) -> None:
    served.write(usual(300))
    report, older = served.audit(), served.note()
    served.write(usual(299))
    assert named(served.audit(since=[older])) == [(None, "it has 299 entries, and had signed 300")]
    found = named(served.audit(before=report.audited))
    assert found == [(None, "it has 299 entries, and had 300 before")]


def test_a_root_that_is_not_that_of_the_entries(served: Served) -> None:
    served.write(usual(300))
    served.sign(Checkpoint(ORIGIN, 300, bytes(32)))
    found = named(served.audit())
    assert found == [(None, "its entries do not lead to the root that it signed")]


def test_a_checkpoint_by_another_key(served: Served) -> None:
    served.write(usual(3), signer=OTHER)
    report = served.audit()
    ((_, detail),) = named(report)
    assert "is not to be believed" in detail
    assert report.audited is None


def changed(count: int, at: int, data: bytes) -> list[bytes]:
    entries = usual(count)
    entries[at] = data
    return entries


ENTRIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "no JSON": (lambda: b"hello", "is no commitment"),
    "another record": (lambda: enrolment(0).to_bytes(), "is no commitment"),
    "a shard twice": (
        lambda: entry(3, 1, steps=77).to_bytes(),
        "shard 1 again, after shard 1 in entry 15",
    ),
    "a start twice": (lambda: entry(3, 0).to_bytes(), "shard 0 again, after shard 1 in entry 15"),
    "a shard left out": (lambda: entry(3, 3).to_bytes(), "shard 3 where shard 2 comes next"),
    "a chain without a start": (lambda: entry(30, 1).to_bytes(), "shard 1 where shard 0"),
    "another beginning": (
        lambda: entry(3, 2, previous=bytes(32)).to_bytes(),
        "shard 2 does not start where entry 15 ended",
    ),
    "somebody else's signature": (
        lambda: signing.sign(entry(3, 2), OTHER).to_bytes(),
        "the signature is not the one of key",
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_that_cannot_be_are_named(served: Served, name: str) -> None:
    make, words = ENTRIES[name]
    served.write(changed(28, 27, make()))
    ((index, detail),) = named(served.audit())
    assert index == 27
    assert words in detail


def test_enrolments_that_are_not_shown_leave_signatures_open(served: Served) -> None:
    served.hidden.add(enrolment(3).digest.hex())  # type: ignore[attr-defined]
    served.write(usual(48))
    report = served.audit()
    assert (report.findings, report.unsigned) == ([], 4)


def test_whole_tiles_stand_in_for_parts_that_are_gone(served: Served) -> None:
    served.write(usual(300))
    note = served.note()
    served.write(usual(600))
    for name in ("tile/0/001.p/44", "tile/entries/001.p/44"):
        served.path(name).unlink()
    served.path("checkpoint").write_text(str(note))
    assert served.audit().findings == []


def test_a_tile_that_says_too_little(served: Served) -> None:
    served.write(usual(300))
    served.path("tile/0/001.p/44").write_bytes(bytes(32))
    assert "32 bytes instead of 44 hashes" in named(served.audit())[0][1]
    served.write(usual(300))
    served.path("tile/entries/001.p/44").write_bytes(b"\xff\xff")
    found = named(served.audit())[0]
    assert found[0] == 256
    assert "ends within entry 256" in found[1]


def test_what_cannot_be_read_is_not_decided(served: Served) -> None:
    with pytest.raises(RegistryError):
        served.audit()
    served.write(usual(300))
    served.path("tile/entries/001.p/44").unlink()
    with pytest.raises(RegistryError, match=r"tile/entries/001\.p/44"):
        served.audit()
    served.path("checkpoint").write_bytes(b"\xff")
    with pytest.raises(RegistryError, match="no text"):
        served.audit()
    served.path("checkpoint").write_bytes(b"x" * 100_000)
    with pytest.raises(RegistryError, match="more than"):
        served.audit()


def test_what_was_kept_must_be_of_this_log(served: Served) -> None:
    served.write(usual(10))
    kept = served.audit().audited
    assert kept is not None
    with pytest.raises(SignatureError):
        served.audit(before=kept, key=NoteKey("other.example", LOG.public_key))
    with pytest.raises(FormatError, match="was changed"):
        served.audit(before=replace(kept, tail=(bytes(32), *kept.tail[1:])))
    with pytest.raises(FormatError, match="another log"):
        served.audit(before=replace(kept, tail=kept.tail[1:]))
    stranger = log_notes.sign_checkpoint(Checkpoint(ORIGIN, 5, bytes(32)), OTHER)
    with pytest.raises(SignatureError):
        served.audit(since=[stranger])


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def test_the_command_line(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = usual(300)
    served.write(entries)
    kept, older = tmp_path / "audited.json", tmp_path / "checkpoint.txt"
    older.write_text(str(served.note()))
    assert run("log", "audit", served.url, "--save", kept) == 0
    said = capsys.readouterr().out
    assert f"✓ {ORIGIN}: 300 entries of 12 chains" in said
    assert f"--key {KEY.text}" in said
    served.write(usual(310))
    assert run("log", "audit", f"{served.url}/log", "--save", kept, "--since", older) == 0
    said = capsys.readouterr().out
    assert "310 entries" in said
    assert "10 of them read now" in said
    assert "--key" not in said
    entries[3] = entry(3, 0).to_bytes() + b" "
    served.write(entries)
    assert run("log", "audit", served.url, "--key", KEY.text, "--since", older, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [item["entry"] for item in found["findings"]] == [3, 15, None]
    assert run("log", "audit", served.url, "--save", kept) == 1
    assert "✕ it has 300 entries, and had 310 before" in capsys.readouterr().out
    assert run("log", "audit", served.url, "--key", "nonsense") == 2
    assert run("log", "audit", "http://127.0.0.1:1/", "--since", tmp_path / "none") == 2


def test_a_witness_signs_no_fork(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OTHER.save(tmp_path / "w.key")
    command = ["log", "witness", served.url, "--key", tmp_path / "w.key", "--name", "w.example"]
    command += ["--save", tmp_path / "seen.json"]
    entries = usual(30)
    served.write(entries)
    # A folder takes no cosignatures, but what was seen is kept before it is signed.
    assert run(*command) == 2
    assert (tmp_path / "seen.json").exists()
    entries[3] = entry(30, 0).to_bytes()
    served.write([*entries, entry(31, 0).to_bytes()])
    assert run(*command) == 1
    assert "cosigned" not in capsys.readouterr().out


def test_a_bundle_is_a_tile_of_entries() -> None:
    assert Tile.parse("tile/entries/001.p/44", place="x") == Tile(None, 1, 44)
