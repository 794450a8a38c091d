"""Openings that travel with their commitments."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks import chains
from benchmarks.opened import marked
from sqlalchemy import select

from polo.protocol.entries import Entry, with_opening
from polo.protocol.records import Nonce
from polo.registry.commitments import openings
from polo.registry.context import Registry
from polo.registry.objects import key_of
from polo.registry.schema import commitments, objects

Refused = Callable[[Any, int, str], None]


class Streaming:
    """A prover whose terms ask for openings, with its start in the log."""

    def __init__(self, registry: Registry, client_of: Callable[..., Any]) -> None:
        (self.prover,) = chains.enrol(registry, 1, "streaming")
        self.registry = registry
        self.asking = client_of(self.prover.key, register=False)
        self.last = self.prover.entry(0)
        self.nonce = self.took(self.post(self.last.to_bytes(), "application/json"))

    def post(self, body: bytes, kind: str = "application/octet-stream") -> Any:
        path = f"/v1/enrolments/{self.prover.id}/commitments"
        return self.asking.post(path, content=body, headers={"Content-Type": kind})

    def took(self, answer: Any) -> Nonce:
        assert answer.status_code == 200, answer.text
        return Nonce.from_json(answer.json()["nonce"], "nonce")

    def sealed(self, number: int = 1) -> tuple[Entry, bytes]:
        """The next entry, and its opening."""
        root, file = marked(self.prover, self.nonce, self.last.root)
        entry = self.prover.entry(number, previous=self.last.root, root=root, opening=file)
        return entry, file

    def held(self, file: bytes) -> bool:
        return self.registry.objects.exists(key_of(hashlib.sha256(file).hexdigest()))

    def rows(self) -> list[Any]:
        with self.registry.database.read() as connection:
            columns = (objects.c.sha256, objects.c.enrolment, objects.c.kind, objects.c.size)
            return [tuple(row) for row in connection.execute(select(*columns))]


@pytest.fixture
def streaming(registry: Registry, client_of: Callable[..., Any]) -> Streaming:
    return Streaming(registry, client_of)


def test_an_opening_travels_with_its_entry(streaming: Streaming, registry: Registry) -> None:
    for number in (1, 2):
        entry, file = streaming.sealed(number)
        streaming.nonce = streaming.took(streaming.post(with_opening(entry.to_bytes(), file)))
        streaming.last = entry
        assert streaming.held(file)
        digest = hashlib.sha256(file).hexdigest()
        assert (digest, streaming.prover.id, "opening", len(file)) in streaming.rows()
    with registry.database.read() as connection:
        read = connection.execute(select(commitments.c.matches).order_by(commitments.c.shard))
        assert list(read.scalars()) == [None, 256, 256]


def test_the_same_again_is_answered_the_same(streaming: Streaming) -> None:
    entry, file = streaming.sealed()
    body = with_opening(entry.to_bytes(), file)
    first, again = streaming.post(body), streaming.post(body)
    alone = streaming.post(entry.to_bytes(), "application/json")
    assert first.json()["receipt"] == again.json()["receipt"] == alone.json()["receipt"]
    assert len(streaming.rows()) == 1


def test_nothing_stays_of_what_is_refused(streaming: Streaming, refused: Refused) -> None:
    entry, file = streaming.sealed()
    other = bytes([file[-1] ^ 1])
    changed = file[:-1] + other
    refused(streaming.post(with_opening(entry.to_bytes(), changed)), 422, "upload.wrong-digest")
    lying = streaming.prover.entry(
        1, previous=streaming.last.root, root=entry.root, opening=changed
    )
    refused(streaming.post(with_opening(lying.to_bytes(), changed)), 422, "commitment.failed-mark")
    elsewhere = streaming.prover.entry(1, previous=bytes(32), root=entry.root, opening=file)
    refused(streaming.post(with_opening(elsewhere.to_bytes(), file)), 409, "commitment.wrong-link")
    assert not streaming.held(file)
    assert not streaming.held(changed)
    assert streaming.rows() == []
    streaming.took(streaming.post(with_opening(entry.to_bytes(), file)))
    assert streaming.held(file)


@pytest.mark.parametrize("body", [b"", b"\x00", bytes(4), b"\x00\x00\x00\x02{}", b"\xff" * 9])
def test_bodies_that_are_no_two_things(streaming: Streaming, body: bytes, refused: Refused) -> None:
    refused(streaming.post(body), 422, "commitment.broken")


def test_an_opening_that_nobody_asked_for(streaming: Streaming, refused: Refused) -> None:
    entry = streaming.prover.entry(0)
    refused(streaming.post(with_opening(entry.to_bytes(), b"x")), 422, "commitment.broken")


def test_bytes_that_are_here_as_another_kind(streaming: Streaming, refused: Refused) -> None:
    entry, file = streaming.sealed()
    with streaming.registry.database.begin() as connection:
        row = {"sha256": hashlib.sha256(file).hexdigest(), "enrolment": streaming.prover.id}
        connection.execute(objects.insert().values(**row, kind="record", size=len(file), made=1))
    refused(streaming.post(with_opening(entry.to_bytes(), file)), 409, "upload.other-kind")


def test_an_entry_whose_turn_it_is_not_costs_no_reading(
    streaming: Streaming, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, file = streaming.sealed()
    monkeypatch.setattr(openings, "check", lambda *_: pytest.fail("looked at the opening"))
    elsewhere = streaming.prover.entry(1, previous=bytes(32), root=entry.root, opening=file)
    refused(streaming.post(with_opening(elsewhere.to_bytes(), file)), 409, "commitment.wrong-link")
