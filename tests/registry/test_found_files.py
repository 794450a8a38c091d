"""Found files: nobody unknown sends one, and none stays that no scan will remove."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

import polo
from polo.protocol import requests as protocol
from polo.registry.context import Registry
from polo.registry.objects import key_of
from polo.registry.problems import Problem
from polo.registry.scans import routes, service, work

RAW = {"Content-Type": "application/octet-stream"}
DATA = b"some model"
KEY = key_of(hashlib.sha256(DATA).digest())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "found.safetensors"
    path.write_bytes(DATA)
    return path


def test_a_scan_that_is_given_up_leaves_no_file(registry: Registry, file: Path) -> None:
    asked = service.found(registry, file, "me")
    assert registry.objects.exists(KEY)
    work.give_up(registry, asked.id, "it crashed")
    assert not registry.objects.exists(KEY)


def test_a_scan_that_is_refused_leaves_no_file(
    registry: Registry, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_WAITING", 0)
    with pytest.raises(Problem, match="not done yet"):
        service.found(registry, file, "me")
    assert not registry.objects.exists(KEY)


@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_received_from_who_cannot_have_signed(
    client: Any, client_of: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    received = []

    async def receive(*_: Any) -> bytes:
        received.append(1)
        return bytes(32)

    monkeypatch.setattr(routes, "_receive", receive)
    somebody = polo.Identity.generate()
    if late:
        client_of(somebody)
    header = protocol.sign(
        somebody, "POST", registry.settings.origin, "/v1/scans", DATA,
        time=registry.clock() - 1000 * late, nonce=bytes(16),
    )  # fmt: skip
    answer = client.post("/v1/scans", content=DATA, headers={**RAW, "Authorization": header})
    assert answer.status_code == 401, answer.text
    assert answer.json()["code"] == ("caller.stale" if late else "caller.unknown-key")
    assert not received
