"""The log from outside: checkpoints, tiles, proofs, cosignatures, and what caches may keep."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import polo
from polo.keys import Ed25519Verifier
from polo.protocol import log_notes, log_tiles, log_tree
from polo.protocol.log_notes import COSIGNATURE, Note, NoteKey
from polo.registry.context import Registry
from polo.registry.log.routes import FOREVER
from polo.registry.settings import Settings

WITNESS = polo.Identity.generate()
NAME = "witness.test/one"


def refused(answer: Any, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.fixture
def settings(settings: Settings) -> Settings:
    key = NoteKey(NAME, WITNESS.public_key, COSIGNATURE)
    return dataclasses.replace(settings, witnesses=(key.text,))


@pytest.fixture
def grown(enrolled: Callable[..., Any], registry: Registry) -> Callable[[int], None]:
    """Adds so many entries."""
    from polo.protocol.requests import Authorization
    from polo.registry.commitments.rules import Submission

    def grow(count: int) -> None:
        done = 0
        while done < count:
            live = enrolled()
            chain = registry.sequencer.chains.get(live.id)
            group = []
            for number in range(min(7, count - done)):
                nonce = number.to_bytes(16, "big")
                given = Authorization(live.key.public_key, registry.clock(), nonce, bytes(64))
                entry = live.entry(number)
                group.append(Submission(chain, entry, entry.to_bytes(), given))
            assert not [item for item in registry.sequencer.settle(group) if not item.body()]
            done += len(group)

    return grow


def head_of(client: Any, registry: Registry, **query: Any) -> log_notes.Checkpoint:
    answer = client.get("/log/checkpoint", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    with registry.database.read() as connection:
        key = NoteKey(registry.settings.origin, registry.vault.log_key(connection).public_key)
    note = Note.parse(answer.text, place="note")
    return log_notes.open_checkpoint(note, key, Ed25519Verifier(), place="note")


def test_an_empty_log(client: Any) -> None:
    refused(client.get("/log/checkpoint"), 404, "log.empty")
    refused(client.get("/log/tile/0/000.p/1"), 404, "log.empty")
    refused(client.get("/v1/log/inclusion", params={"index": 0}), 404, "log.empty")
    assert client.get("/v1/log/consistency", params={"old": 0, "new": 0}).json()["path"] == []


def test_tiles_lead_to_the_signed_root(
    client: Any, registry: Registry, grown: Callable[[int], None]
) -> None:
    grown(300)
    head = head_of(client, registry)
    assert head.size == 300

    def fetch(tile: log_tiles.Tile) -> list[bytes]:
        answer = client.get(f"/log/{tile.path}")
        assert answer.headers["cache-control"] == FOREVER
        return log_tiles.hashes_of(answer.content, tile)

    assert log_tree.root_of(300, log_tiles.lookup_in(300, fetch)) == head.root
    leaves = []
    for tile in log_tiles.tiles_of(300, None):
        for entry in log_tiles.entries_of(client.get(f"/log/{tile.path}").content, tile):
            leaves.append(polo.protocol.entries.leaf_hash(entry))
    assert log_tree.Frontier().grown(leaves)[0].root == head.root


def test_paths_that_no_tile_has(client: Any, grown: Callable[[int], None]) -> None:
    grown(5)
    assert client.get("/log/tile/0/000.p/5").status_code == 200
    assert client.get("/log/tile/0/000.p/3").status_code == 200
    for path in (
        "0/000", "0/000.p/6", "0/000.p/0", "1/000", "0/001.p/1", "0/0", "-1/000", "99/000",
        "entries/000", "x/000", "0/x000/000.p/1", "0/000.p/05", "", "0/000.p/5/",
    ):  # fmt: skip
        refused(client.get(f"/log/tile/{path}"), 404, "log.missing")


def test_caches(client: Any, grown: Callable[[int], None]) -> None:
    grown(2)
    answer = client.get("/log/checkpoint")
    assert "immutable" not in answer.headers["cache-control"]
    same = client.get("/log/checkpoint", headers={"If-None-Match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    grown(1)
    fresh = client.get("/log/checkpoint", headers={"If-None-Match": answer.headers["etag"]})
    assert fresh.status_code == 200
    tile = client.get("/log/tile/0/000.p/2")
    assert tile.headers["access-control-allow-origin"] == "*"
    again = client.get("/log/tile/0/000.p/2", headers={"If-None-Match": tile.headers["etag"]})
    assert again.status_code == 304


def test_proofs(client: Any, registry: Registry, grown: Callable[[int], None]) -> None:
    heads = []
    for count in (1, 4, 8):
        grown(count)
        heads.append(head_of(client, registry))
    old, last = heads[0], heads[-1]
    for head in heads:
        query = {"old": old.size, "new": head.size}
        path = client.get("/v1/log/consistency", params=query).json()["path"]
        hashes = [bytes.fromhex(item) for item in path]
        log_tree.check_consistency(old.size, old.root, head.size, head.root, hashes, place="proof")
    tile = log_tiles.Tile(0, 0, last.size)
    leaves = log_tiles.hashes_of(client.get(f"/log/{tile.path}").content, tile)
    for index in range(last.size):
        found = client.get("/v1/log/inclusion", params={"index": index}).json()
        path = [bytes.fromhex(item) for item in found["path"]]
        log_tree.check_inclusion(leaves[index], index, 13, path, last.root, place="proof")
        assert found["checkpoint"].startswith(last.text)
    small = client.get("/v1/log/inclusion", params={"index": 0, "size": 3}).json()
    assert small["checkpoint"] is None
    for query in ({"index": 13}, {"index": 3, "size": 3}, {"index": 0, "size": 14}):
        refused(client.get("/v1/log/inclusion", params=query), 404, "log.missing")
    for query in ({"old": 3, "new": 2}, {"old": 0, "new": 14}):
        refused(client.get("/v1/log/consistency", params=query), 404, "log.missing")
    assert client.get("/v1/log/inclusion", params={"index": -1}).status_code == 422


def test_cosignatures_of_known_witnesses_are_kept(
    client: Any, registry: Registry, grown: Callable[[int], None]
) -> None:
    grown(3)
    refused(client.get("/log/checkpoint", params={"quorum": 1}), 404, "log.missing")
    note = Note.parse(client.get("/log/checkpoint").text, place="note")
    line = log_notes.cosign(note.text, NAME, WITNESS, 1_800_000_000)
    for _ in range(2):
        taken = client.post("/v1/log/cosignatures", content=str(note.signed(line)))
        assert taken.json() == {"size": 3, "witnesses": [NAME]}
    grown(2)
    seen = Note.parse(client.get("/log/checkpoint", params={"quorum": 1}).text, place="note")
    key = NoteKey(NAME, WITNESS.public_key, COSIGNATURE)
    assert log_notes.cosigned(seen, [key], Ed25519Verifier(), place="x") == {key: 1_800_000_000}
    assert head_of(client, registry, quorum=1).size == 3
    assert head_of(client, registry).size == 5
    found = client.get("/v1/log/inclusion", params={"index": 1, "quorum": 1}).json()
    assert found["size"] == 3
    assert NAME in found["checkpoint"]
    later = client.get("/v1/log/inclusion", params={"index": 4, "quorum": 1})
    refused(later, 404, "log.missing")


def test_cosignatures_that_are_refused(client: Any, grown: Callable[[int], None]) -> None:
    grown(2)
    note = Note.parse(client.get("/log/checkpoint").text, place="note")
    stranger = log_notes.cosign(note.text, "stranger.test", polo.Identity.generate(), 5)
    refused(client.post("/v1/log/cosignatures", content=str(note.signed(stranger))), 403,
            "log.not-cosigned")  # fmt: skip
    good = log_notes.cosign(note.text, NAME, WITNESS, 5)
    forged = dataclasses.replace(
        good, signature=bytes([good.signature[0] ^ 1]) + good.signature[1:]
    )
    refused(client.post("/v1/log/cosignatures", content=str(note.signed(forged))), 422,
            "log.not-cosigned")  # fmt: skip
    other = note.text.replace("\n2\n", "\n3\n")
    elsewhere = Note(other, (log_notes.cosign(other, NAME, WITNESS, 5),))
    refused(client.post("/v1/log/cosignatures", content=str(elsewhere)), 409,
            "log.other-checkpoint")  # fmt: skip
    for body in (b"", b"\xff", b"x\n\ny\n"):
        assert client.post("/v1/log/cosignatures", content=body).status_code == 422
