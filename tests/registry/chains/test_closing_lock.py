"""Reading a manifest takes seconds where it is large: commitments of others do not wait for it."""

from typing import Any

import pytest

from polo.protocol.records import Manifest
from polo.registry import database
from polo.registry.challenges.service import fail_chain
from polo.registry.commitments.sequencer import LOCK
from polo.registry.context import Registry
from polo.registry.enrolments import closing


def test_a_manifest_is_read_before_the_log_is_locked(
    live: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reading:
        """Takes the log's lock while the manifest is being read, as a commitment would."""

        @staticmethod
        def from_bytes(data: bytes, place: str) -> Manifest:
            with registry.database.begin() as connection:
                registry.database.lock(connection, LOCK)
            return Manifest.from_bytes(data, place)

    live.commit(0)
    live.commit(1)
    manifest = live.manifest()
    monkeypatch.setattr(database, "BUSY_SECONDS", 1)
    monkeypatch.setattr(closing, "Manifest", Reading)
    url = f"/v1/enrolments/{live.id}/close"
    answer = live.asking.post(url, content=manifest.to_bytes())
    assert answer.status_code == 200, answer.text
    assert live.asking.post(url, content=manifest.to_bytes()).status_code == 200


def test_nobody_goes_on_from_a_chain_that_failed(live: Any, registry: Registry) -> None:
    live.commit(0)
    live.commit(1)
    assert live.close().status_code == 200
    asked = {"task": "digits", "parent": live.id}
    assert live.asking.post("/v1/enrolments", json=asked).status_code == 201
    with registry.database.begin() as connection:
        fail_chain(connection, live.id, "it failed a challenge", registry.clock())
    answer = live.asking.post("/v1/enrolments", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "enrolment.parent")
