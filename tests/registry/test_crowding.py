"""Whoever asks too much gets in nobody else's way."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

import polo
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
