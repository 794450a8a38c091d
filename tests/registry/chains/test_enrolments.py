"""Enrolments: who gets which terms, who sees them, and how they end."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

import polo
from polo.evidence.receipts.rules import Rules
from polo.keys import Ed25519Verifier
from polo.protocol import signing
from polo.protocol.layout import Layout
from polo.protocol.log_notes import COSIGNATURE, NoteKey
from polo.protocol.records import Enrolment, File
from polo.protocol.verdicts import Others
from polo.registry.context import Registry
from polo.registry.enrolments import past
from polo.registry.schema import challenges, enrolments, events
from polo.registry.settings import Settings


def refused(answer: Any, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_an_enrolment_is_signed_by_the_registry_for_whoever_asks(
    live: Any, registry: Registry, client: Any
) -> None:
    record = live.record
    assert record.identity == live.key.public_key
    signing.check(record, record.issuer, Ed25519Verifier(), place="enrolment")
    with registry.database.read() as connection:
        assert record.issuer == registry.vault.issuer(connection).public_key
        log = NoteKey(registry.settings.origin, registry.vault.log_key(connection).public_key)
    assert record.nonces.kind == "live"
    assert record.terms.shards.most == 6
    rules = Rules.of(record.terms, record.issuer)
    assert (rules.origin, rules.log) == (registry.settings.origin, log)
    assert rules.keep == registry.settings.keep_days
    shown = client.get(f"/v1/enrolments/{live.id}").json()
    assert Enrolment.from_json(shown["enrolment"], "enrolment") == record
    assert Layout.from_json(shown["layout"], "layout").digest == record.terms.layout
    assert (shown["state"], shown["shards"]) == ("open", 0)


def test_bits_may_be_chosen_within_bounds(enrolled: Callable[..., Any]) -> None:
    live = enrolled(bits=256)
    assert live.record.terms.scheme.bits == 256
    for bits in (96, 544):
        answer = live.asking.post("/v1/enrolments", json={"task": "digits", "bits": bits})
        refused(answer, 422, "enrolment.options")
    odd = live.asking.post("/v1/enrolments", json={"task": "digits", "bits": 200})
    refused(odd, 422, "error.terms")


@pytest.mark.parametrize(
    "body", [{}, {"task": 5}, {"task": "digits", "shards": 9}, {"task": "digits", "parent": "x"}]
)
def test_nothing_else_may_be_chosen(live: Any, body: Any) -> None:
    refused(live.asking.post("/v1/enrolments", json=body), 422, "body.invalid")


def test_other_requests_that_are_refused(live: Any, client: Any) -> None:
    refused(live.asking.post("/v1/enrolments", json={"task": "poker"}), 404, "task.missing")
    refused(client.post("/v1/enrolments", json={"task": "digits"}), 401, "caller.missing")
    given = {"task": "digits", "data": {"format": "polo/data/1"}}
    refused(live.asking.post("/v1/enrolments", json=given), 422, "error.format")
    orphan = {"task": "digits", "parent": "0" * 64}
    refused(live.asking.post("/v1/enrolments", json=orphan), 422, "enrolment.parent")
    refused(client.get(f"/v1/enrolments/{'0' * 64}"), 404, "enrolment.missing")


def test_a_retry_with_its_word_enrols_once(live: Any) -> None:
    headers = {"Idempotency-Key": "again"}
    body = {"task": "digits"}
    first = live.asking.post("/v1/enrolments", json=body, headers=headers)
    again = live.asking.post("/v1/enrolments", json=body, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    other = live.asking.post("/v1/enrolments", json=body)
    assert other.json()["id"] != first.json()["id"]


def test_the_secret_is_sealed_and_shown_when_nothing_more_comes(
    live: Any, registry: Registry, client_of: Callable[..., Any], person: Callable[..., Any]
) -> None:
    url = f"/v1/enrolments/{live.id}/secret"
    refused(live.asking.get(url), 409, "enrolment.open")
    refused(person("auditor").get(url), 409, "enrolment.open")
    live.commit(0)
    live.commit(1)
    assert live.close().status_code == 200
    secret = live.asking.get(url).json()["secret"]
    assert person("auditor").get(url).json()["secret"] == secret
    refused(client_of(polo.Identity.generate()).get(url), 403, "enrolment.not-yours")
    with registry.database.read() as connection:
        stored = bytes(connection.execute(select(enrolments.c.secret)).scalar_one())
        noted = [" ".join(map(str, row)) for row in connection.execute(select(events))]
    assert bytes.fromhex(secret) not in stored
    assert not any(secret in text for text in noted)


def test_a_prover_sees_its_own_and_auditors_see_all(
    enrolled: Callable[..., Any], person: Callable[..., Any], client: Any
) -> None:
    mine = enrolled()
    others = [enrolled() for _ in range(4)]
    listed = mine.asking.get("/v1/enrolments").json()
    assert [item["id"] for item in listed["items"]] == [mine.id]
    auditor = person("auditor")
    seen, after = [], ""
    while after is not None:
        page = auditor.get("/v1/enrolments", params={"limit": 2, "after": after}).json()
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
    assert seen == sorted([mine.id, *(live.id for live in others)])
    assert auditor.get("/v1/enrolments", params={"state": "closed"}).json()["items"] == []
    refused(client.get("/v1/enrolments"), 401, "caller.missing")


def test_a_chain_is_closed_by_its_manifest(live: Any, registry: Registry) -> None:
    for number in range(3):
        live.commit(number)
    closed = live.close()
    assert closed.status_code == 200
    assert (closed.json()["state"], closed.json()["shards"]) == ("closed", 2)
    assert live.close().json()["state"] == "closed"
    refused(live.close(outside=3), 409, "enrolment.closed")
    withdrawn = live.asking.post(f"/v1/enrolments/{live.id}/withdraw")
    refused(withdrawn, 409, "enrolment.closed")
    with registry.database.read() as connection:
        row = connection.execute(select(enrolments.c.manifest)).scalar_one()
        actions = connection.execute(select(events.c.action).order_by(events.c.id)).scalars().all()
    assert bytes(row) == live.manifest().to_bytes()
    assert actions.count("enrolment.closed") == 1


def test_a_manifest_that_says_something_else_is_refused(live: Any) -> None:
    for number in range(3):
        live.commit(number)
    whole = live.manifest()
    shards = whole.shards
    odd = dataclasses.replace(shards[1], epochs=7)
    unreceipted = dataclasses.replace(shards[1], receipt=None)
    swapped = dataclasses.replace(shards[1], receipt=shards[0].receipt)
    wrong = (File("openings/000001.safetensors", 5, bytes(32)),)
    for changes in (
        {"shards": shards[:1]},
        {"shards": (shards[0], odd)},
        {"shards": (shards[0], unreceipted)},
        {"shards": (shards[0], swapped)},
        {"start": dataclasses.replace(whole.start, secret=bytes(32))},
        {"finished": False},
        {"files": wrong},
    ):
        refused(live.close(**changes), 422, "enrolment.manifest")
    url = f"/v1/enrolments/{live.id}/close"
    forged = dataclasses.replace(whole, signature=bytes(64)).to_bytes()
    for body in (b"{}", b"", forged):
        refused(live.asking.post(url, content=body), 422, "enrolment.manifest")
    assert live.close().status_code == 200


def test_a_chain_with_too_few_shards_is_not_closed(live: Any) -> None:
    live.commit(0)
    refused(live.close(), 422, "enrolment.manifest")


def test_only_its_prover_ends_a_chain(live: Any, client_of: Callable[..., Any]) -> None:
    stranger = client_of(polo.Identity.generate())
    live.commit(0)
    live.commit(1)
    body = live.manifest().to_bytes()
    refused(stranger.post(f"/v1/enrolments/{live.id}/close", content=body), 403,
            "enrolment.not-yours")  # fmt: skip
    refused(stranger.post(f"/v1/enrolments/{live.id}/withdraw"), 403, "enrolment.not-yours")
    for _ in range(2):
        gone = live.asking.post(f"/v1/enrolments/{live.id}/withdraw")
        assert gone.json()["state"] == "withdrawn"
    refused(live.close(), 409, "enrolment.withdrawn")


def test_a_chain_goes_on_from_a_closed_one(live: Any, enrolled: Callable[..., Any]) -> None:
    live.commit(0)
    live.commit(1)
    early = live.asking.post("/v1/enrolments", json={"task": "digits", "parent": live.id})
    refused(early, 422, "enrolment.parent")
    assert live.close().status_code == 200
    child = enrolled(parent=live.id)
    terms = child.record.terms
    assert (terms.start.kind, terms.start.parent) == ("parent", live.entry(1).root)
    assert len(terms.task.floor) == 1
    refused(child.post(child.start()), 422, "commitment.limits")
    assert child.post(child.start(live.entry(1).root)).status_code == 200


class TestReplay:
    """Where the operator asks for replay, an enrolment names the data."""

    @pytest.fixture
    def offers(self, offers: str) -> str:
        return f"{offers}recipe = {{ rate = 0.05, batch = 64 }}\nreplays = 0.5\n"

    def test_data_must_be_named(self, enrolled: Callable[..., Any], client: Any) -> None:
        assert client.get("/v1/tasks").json()["items"][0]["needs_data"]
        columns = [
            {"name": "image", "dtype": "F32", "shape": [1, 8, 8]},
            {"name": "label", "dtype": "I64", "shape": []},
        ]
        data = {"format": "polo/data/1", "root": "ab" * 32, "samples": 1000, "columns": columns}
        live = enrolled(data=data)
        terms = live.record.terms
        assert terms.data == bytes.fromhex("ab" * 32)
        assert [item.level for item in terms.evidence] == ["chain", "receipts", "replay"]
        assert terms.shards.fewest_steps == 16
        assert terms.history == "streaming"
        nothing = live.asking.post("/v1/enrolments", json={"task": "digits"})
        refused(nothing, 422, "enrolment.options")
        other = {**data, "columns": columns[:1]}
        refused(live.asking.post("/v1/enrolments", json={"task": "digits", "data": other}),
                422, "error.terms")  # fmt: skip


class TestWitnesses:
    """Terms may ask for witnesses that the operator knows."""

    WITNESS = NoteKey("witness.test", polo.Identity.generate().public_key, COSIGNATURE)

    @pytest.fixture
    def offers(self, offers: str) -> str:
        return f"{offers}quorum = 1\n"

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return dataclasses.replace(settings, witnesses=(self.WITNESS.text,))

    def test_terms_name_them(self, live: Any) -> None:
        rules = Rules.of(live.record.terms, live.record.issuer)
        assert (rules.witnesses, rules.quorum) == ((self.WITNESS,), 1)


def drawn(registry: Registry, live: Any, state: str, detail: str = "") -> None:
    row = {"id": live.id[:32], "enrolment": live.id, "kind": "checkpoint", "shard": 1}
    row |= {"record": b"{}", "state": state, "detail": detail, "made": 1, "due": 2**40}
    with registry.database.begin() as connection:
        connection.execute(challenges.insert().values(row))


def test_whoever_was_caught_too_often_is_not_enrolled_again(
    enrolled: Callable[..., Any], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dataclasses.replace(registry.settings, max_failed=2)
    monkeypatch.setattr(registry, "settings", few)
    first = enrolled()

    def others() -> Others:
        with registry.database.read() as connection:
            row = connection.execute(select(enrolments.c.identity)).scalars().first()
            return past.others(connection, str(row))

    # Given up before anything was committed to, or with all that was asked for shown.
    first.asking.post(f"/v1/enrolments/{first.id}/withdraw")
    second = enrolled(first.key, first.asking)
    second.commit(0)
    second.commit(1)
    drawn(registry, second, "passed")
    second.asking.post(f"/v1/enrolments/{second.id}/withdraw")
    assert others() == Others(failed=0, withdrawn=1, stuck=0, waiting=0)
    # In view of a challenge, answered or not.
    third = enrolled(first.key, first.asking)
    drawn(registry, third, "open")
    # Who is caught need not withdraw: until it is due the chain has not failed.
    assert others() == Others(failed=0, withdrawn=1, stuck=0, waiting=1)
    third.asking.post(f"/v1/enrolments/{third.id}/withdraw")
    assert others() == Others(failed=1, withdrawn=1, stuck=0, waiting=0)
    fourth = enrolled(first.key, first.asking)
    drawn(registry, fourth, "answered")
    assert others() == Others(failed=1, withdrawn=1, stuck=0, waiting=1)
    with registry.database.begin() as connection:
        connection.execute(challenges.update().values(detail="another platform"))
    assert others() == Others(failed=1, withdrawn=1, stuck=1, waiting=0)
    answer = first.asking.post("/v1/enrolments", json={"task": "digits"})
    refused(answer, 403, "enrolment.too-many-failed")
    enrolled()  # Somebody else.


def test_an_identity_has_so_many_at_most(
    enrolled: Callable[..., Any], registry: Registry, monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    few = dataclasses.replace(registry.settings, max_enrolments=2)
    monkeypatch.setattr(registry, "settings", few)
    first = enrolled()
    body = {"task": "digits"}
    assert first.asking.post("/v1/enrolments", json=body).status_code == 201
    refused(first.asking.post("/v1/enrolments", json=body), 429, "enrolment.too-many")
    enrolled()  # Somebody else has a count of its own.
    assert first.asking.post(f"/v1/enrolments/{first.id}/withdraw").status_code == 200
    # To enrol and withdraw without end would fill the database.
    refused(first.asking.post("/v1/enrolments", json=body), 429, "enrolment.too-many")
    clock.advance(86_400)
    assert first.asking.post("/v1/enrolments", json=body).status_code == 201
