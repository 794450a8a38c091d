"""Pages of chains that the registry itself took in, and of records nobody should ever see."""

import dataclasses
import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from polo.checks import Status
from polo.protocol.records import TaskTerms
from polo.registry.context import Registry
from polo.registry.pages import chain_page, queries, render, terms

HTML = {"Accept": "text/html"}


@pytest.fixture
def live(registry: Registry, client: TestClient) -> Any:
    import live_chain

    chain = live_chain.enrol(registry, live_chain.identity(1), checkpoints="0")
    chain.clock = registry.clock
    for _ in range(4):
        chain.commit(client)
    return chain


def test_a_chain_that_was_committed_over_the_wire(live: Any, client: TestClient) -> None:
    page = client.get(f"/chains/{live.id}", headers=HTML).text
    assert re.findall(r'<tr id="shard-(\d+)"', page) == ["3", "2", "1", "0"]
    assert "mark not read here yet" in page
    assert "growing" in page
    log = client.get("/log", headers=HTML).text
    assert log.count(f'href="/chains/{live.id}#shard-') == 4
    note = client.get("/log/checkpoint").text
    assert all(line in log for line in note.splitlines() if "+" not in line)


def test_the_page_follows_each_commitment(live: Any, client: TestClient) -> None:
    place = f"/chains/{live.id}/live"
    first = client.get(place, headers=HTML)
    tag = {"If-None-Match": first.headers["etag"]}
    assert client.get(place, headers=tag).status_code == 304
    live.commit(client)
    later = client.get(place, headers=tag)
    assert later.status_code == 200
    assert 'data-say="Shard 4 is committed' in later.text


def test_a_nonce_is_on_no_page(live: Any, client: TestClient) -> None:
    entry = live.entry()
    body = entry.to_bytes()
    answer = client.post(live.path, content=body, headers=live.headers(body)).json()
    secret = [answer["nonce"]["nonce"], answer["nonce"]["salt"]]
    for place in ("/", f"/chains/{live.id}", f"/chains/{live.id}/live", "/log"):
        page = client.get(place, headers=HTML).text
        assert not [word for word in secret if word in page]


def made_up(**changes: Any) -> queries.Chain:
    """A chain of 250 shards, with a metric that no record may have."""
    import live_chain

    from polo.protocol import log_notes
    from polo.protocol.records import Enrolment, NonceTerms

    key = log_notes.NoteKey("o", live_chain.identity(2).public_key)
    metric = "<script>alert(1)</script>\"'\u202e"
    task = TaskTerms("<b>task", 1, metric, (100_000,))
    own = dataclasses.replace(live_chain.terms("o", key), task=task)
    record = Enrolment(own, bytes(32), NonceTerms("live", bytes(32), 0), 0, bytes(32))
    lines = [queries.ShardLine(0, None, 0, 0, True, None, 128, None)]
    for number in range(1, 251):
        said = queries.Said(128, 5, {metric: 4_000 * number})
        read = 128 if number % 2 else None
        lines.append(queries.ShardLine(number, said, 60 * number, number, True, read, 128, 60))
    chain = queries.Chain("a" * 64, "<i>name", "b" * 64, "open", 250, 0, record, lines)
    return dataclasses.replace(chain, **changes)


def live_part(chain: queries.Chain, to: int | None = None) -> str:
    return render.written("chain_live.html", chain_page._live(chain, to))


def test_even_records_that_cannot_be_come_out_harmless() -> None:
    page = live_part(made_up())
    assert "<script" not in page
    assert "<b>task" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page


def test_a_long_chain_is_listed_in_parts_and_drawn_whole() -> None:
    page = live_part(made_up())
    numbers = [int(number) for number in re.findall(r'<tr id="shard-(\d+)"', page)]
    assert numbers == list(range(250, 150, -1))
    assert "?to=150" in page
    assert "227 checkpoints in between" in page
    assert "250 of 250 shards have a value" in page
    older = live_part(made_up(), 50)
    assert re.findall(r'<tr id="shard-(\d+)"', older)[-1] == "0"
    assert "Older shards" not in older


def test_a_weak_mark_and_a_missing_answer_show() -> None:
    lines = list(made_up().lines[:4])
    lines[2] = dataclasses.replace(lines[2], read=70)
    lines[3] = dataclasses.replace(lines[3], receipted=False)
    chain = made_up(lines=lines)
    from polo.registry.pages import plots

    assert [plots.status_of(chain, line) for line in chain.shards] == [
        Status.PASSED,
        Status.FAILED,
        Status.UNDECIDED,
    ]
    page = live_part(chain)
    assert '<li class="is-failed"><span aria-hidden="true">✕</span> mark read: 70 of 128' in page
    assert "too weak" in page


def test_terms_are_explained() -> None:
    import live_chain

    from polo.protocol import log_notes

    key = log_notes.NoteKey("o", live_chain.identity(2).public_key)
    settings = {"checkpoints": "50000", "fastest": "90", "answer_within": "x"}
    own = live_chain.terms("o", key, **settings)
    found = {term.name: term.value for term in terms.explained(own)}
    assert found["Drawn while it grows"] == "5.00% checkpoints"
    assert found["Pace"] == "at most one shard in 1 min 30 s"
    assert found["Mark counts as read"] == "η ≥ 0.9 and log₂ p ≤ −40"
    assert [level.name for level in terms.levels(own)] == ["chain", "receipts"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "Nobody’s, as far as this registry knows"), (b"\x80\x04.", "could not be scanned")],
)
def test_a_file_is_scanned_to_the_end(
    live: Any, client: TestClient, word_of: Any, content: Any, words: str
) -> None:
    import numpy as np
    from safetensors.numpy import save

    drawn = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    model = save({"weight": drawn}) if content is None else content
    form = client.get("/whose", headers=HTML).text
    files = {"csrf": (None, word_of(form)), "model": ("m.safetensors", model)}
    asked = client.post("/whose", files=files, headers=HTML, follow_redirects=False)
    assert asked.status_code == 303, asked.text
    place = asked.headers["location"]
    end = time.monotonic() + 60
    while "data-source" in (page := client.get(place, headers=HTML).text):
        assert time.monotonic() < end, "the scan did not end"
        time.sleep(0.2)
    assert words in page
