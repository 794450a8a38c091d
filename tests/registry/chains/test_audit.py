"""Auditing a real registry over the wire, before and after somebody meddled with its log."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from sqlalchemy import delete, update

from polo.client.audit import Audited, Report, audit
from polo.client.http import Patience
from polo.client.log_reader import LogReader
from polo.protocol import log_tree, signing
from polo.protocol.entries import Entry, leaf_hash
from polo.protocol.log_notes import Checkpoint, Note, sign_checkpoint
from polo.registry.context import Registry
from polo.registry.schema import cosignatures, log_heads, log_leaves, log_nodes


@pytest.fixture
def audited(served: str) -> Callable[..., Report]:
    """Audits the registry as a stranger would."""

    def run(**options: Any) -> Report:
        reader = LogReader(served, patience=Patience(tries=1))
        try:
            # The address gives the key here; who has it from terms would not ask for it.
            return audit(reader, reader.key(), **options)
        finally:
            reader.close()

    return run


def rewrite(registry: Registry, change: Callable[[list[bytes]], None]) -> None:
    """What an operator with the database and the key can do: another log, well signed."""
    with registry.database.begin() as connection:
        rows = connection.execute(log_leaves.select().order_by(log_leaves.c.index)).all()
        entries = [bytes(row[2]) for row in rows]
        change(entries)
        for table in (cosignatures, log_heads, log_nodes, log_leaves):
            connection.execute(delete(table))
        frontier, nodes = log_tree.Frontier().grown(map(leaf_hash, entries))
        leaves = [
            {"index": at, "hash": leaf_hash(entry), "entry": entry}
            for at, entry in enumerate(entries)
        ]
        connection.execute(log_leaves.insert(), leaves)
        inner = [
            {"level": node.level, "index": node.index, "hash": node.hash}
            for node in nodes
            if node.level
        ]
        connection.execute(log_nodes.insert(), inner)
        head = Checkpoint(registry.settings.origin, frontier.size, frontier.root)
        note = str(sign_checkpoint(head, registry.vault.log_key(connection)))
        row = {"size": frontier.size, "root": frontier.root, "time": 1, "note": note}
        connection.execute(log_heads.insert(), row)


def test_an_honest_registry_passes_and_grows(
    audited: Callable[..., Report], enrolled: Callable[..., Any]
) -> None:
    chains = [enrolled() for _ in range(3)]
    for number in range(3):
        for chain in chains:
            chain.commit(number)
    first = audited()
    assert first.findings == []
    assert (first.read, first.chains, first.unsigned) == (9, 3, 0)
    assert first.audited is not None
    for chain in chains:
        chain.commit(3)
    older = Note.parse(first.note, place="older")
    again = audited(before=Audited.from_bytes(first.audited.to_bytes(), "kept"), since=[older])
    assert again.findings == []
    assert (again.read, again.chains) == (3, 3)


def test_an_empty_registry_has_nothing_to_find(audited: Callable[..., Report]) -> None:
    report = audited()
    assert (report.findings, report.checkpoint) == ([], None)


def test_a_row_that_was_edited_is_named(
    audited: Callable[..., Report], live: Any, registry: Registry
) -> None:
    for number in range(5):
        live.commit(number)
    other = live.shard(3, steps=99)
    with registry.database.begin() as connection:
        row = log_leaves.c["index"] == 3
        connection.execute(update(log_leaves).where(row).values(entry=other.to_bytes()))
    found = [(item.entry, item.detail) for item in audited().findings]
    assert found[0] == (3, "it is not what the tree was made of")


def test_a_log_that_was_rewritten_and_signed_again(
    audited: Callable[..., Report], live: Any, registry: Registry
) -> None:
    for number in range(5):
        live.commit(number)
    first = audited()
    older = Note.parse(first.note, place="older")

    def change(entries: list[bytes]) -> None:
        entries[4] = live.shard(4, steps=99).to_bytes()

    rewrite(registry, change)
    # Well signed and in order: who looks for the first time cannot tell.
    assert audited().findings == []
    ((entry, detail),) = [(item.entry, item.detail) for item in audited(since=[older]).findings]
    assert entry is None
    assert "it was forked" in detail
    kept = audited(before=first.audited).findings
    assert (4, "it is another than at the last audit") in [(i.entry, i.detail) for i in kept]


def test_entries_that_the_registry_made_up_are_named(
    audited: Callable[..., Report], live: Any, registry: Registry
) -> None:
    for number in range(4):
        live.commit(number)

    def change(entries: list[bytes]) -> None:
        own = Entry.from_bytes(entries[3], "entry")
        with registry.database.read() as connection:
            entries[3] = signing.sign(own, registry.vault.issuer(connection)).to_bytes()

    rewrite(registry, change)
    ((entry, detail),) = [(item.entry, item.detail) for item in audited().findings]
    assert entry == 3
    assert "the signature is not the one of key" in detail


def test_tiles_are_served_as_anybody_expects_them(served: str, live: Any) -> None:
    live.commit(0)
    with httpx2.Client(base_url=served) as client:
        assert client.get("/log/checkpoint").status_code == 200
        assert len(client.get("/log/tile/0/000.p/1").content) == 32
        assert client.get("/log/tile/0/000").status_code == 404
