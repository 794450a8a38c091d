"""While a receipt waits for a challenge, nothing is told about the nonce that comes with it."""

import hashlib
from typing import Any

import pytest

from polo.registry.commitments import openings, service
from polo.registry.context import Registry
from polo.registry.schema import objects


@pytest.fixture
def offers(offers: str) -> str:
    return f'{offers}history = "streaming"\ncheckpoints = 1.0\n'


def opened(registry: Registry, live: Any, number: int) -> bytes:
    """Let the opening of a shard have been uploaded; its digest."""
    digest = hashlib.sha256(b"opening %d" % number).digest()
    row = {"sha256": digest.hex(), "enrolment": live.id, "kind": "opening", "size": 1, "made": 1}
    with registry.database.begin() as connection:
        connection.execute(objects.insert().values(row))
    return digest


def test_no_mark_is_read_before_its_nonce_was_given(
    live: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def matches(_objects: Any, _chain: Any, _previous: Any, entry: Any, _opening: Any) -> int:
        read.append(entry.number)
        return live.record.terms.scheme.bits

    monkeypatch.setattr(openings, "matches", matches)
    live.commit(0)
    assert live.post(live.shard(1, opening=opened(registry, live, 1))).status_code == 202
    ahead = live.shard(2, opening=opened(registry, live, 2))
    answer = live.post(ahead)
    assert (answer.status_code, answer.json()["code"]) == (409, "commitment.waiting")
    assert read == [1]
    with registry.database.begin() as connection:
        service.release(registry, connection, live.id, 1)
    assert live.post(ahead).status_code == 202
    assert read == [1, 2]


def test_what_the_log_cannot_hold_is_not_even_parsed(live: Any) -> None:
    answer = live.post(b'{"x":' + b"[" * 70_000)
    assert (answer.status_code, answer.json()["code"]) == (422, "commitment.broken")
    assert "65535" in answer.json()["detail"]
