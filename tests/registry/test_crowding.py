"""Whoever asks too much gets in nobody else's way."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

import polo
from polo.registry import wire
from polo.registry.context import Registry
from polo.registry.limits import BURST_SECONDS
from polo.registry.schema import requests
from polo.registry.settings import Settings


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, rate=1)


def test_who_asks_too_often_writes_nothing(client_of: Any, registry: Registry) -> None:
    asking = client_of(polo.Identity.generate())
    answers = [asking.get("/v1/enrolments").status_code for _ in range(4 * BURST_SECONDS)]
    assert answers.count(200) <= BURST_SECONDS + 2
    assert 429 in answers
    with registry.database.read() as connection:
        spent = connection.execute(select(func.count()).select_from(requests)).scalar_one()
    # One for the registration; none for those that were refused.
    assert spent == answers.count(200) + 1


def test_strangers_large_pieces_keep_no_small_request_out(
    client_of: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can send pieces slowly; commitments, which are small, get in all the same."""
    asking = client_of(polo.Identity.generate())
    monkeypatch.setattr(wire, "MOST_HELD", 0)
    small = asking.post("/v1/enrolments", json={"task": "nothing"})
    large = asking.post("/v1/enrolments", json={"task": "x" * wire.SMALL})
    assert (small.json()["code"], large.json()["code"]) == ("task.missing", "registry.busy")
