"""Every entry is answered by a receipt or refused by its code, over both databases."""

import dataclasses
import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

import polo
from polo.keys import Ed25519Verifier
from polo.protocol import canonical, entries, log_notes, log_tree, nonces, signing
from polo.protocol import requests as protocol
from polo.protocol.entries import Entry, Inclusion
from polo.protocol.log_notes import NoteKey
from polo.protocol.records import Nonce, Receipt
from polo.registry.commitments import service
from polo.registry.commitments.answers import Waiting
from polo.registry.commitments.rules import signed_part
from polo.registry.commitments.views import ReceiptedView, WaitingView
from polo.registry.context import Registry


def refused(answer: Any, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def check_answer(live: Any, answer: dict[str, Any], registry: Registry, number: int) -> Receipt:
    """What a prover checks: signature, nonce, place in the log."""
    receipt = Receipt.from_json(answer["receipt"], "receipt")
    signing.check(receipt, live.record.issuer, Ed25519Verifier(), place="receipt")
    assert (receipt.enrolment, receipt.shard) == (live.record.digest, number)
    assert receipt.origin == registry.settings.origin
    nonce = Nonce.from_json(answer["nonce"], "nonce")
    assert nonce.shard == number + 1
    assert nonces.leaf(nonce) == receipt.next_nonce
    found = Inclusion.from_json(answer["inclusion"], "inclusion")
    assert found.index == receipt.index
    with registry.database.read() as connection:
        key = NoteKey(registry.settings.origin, registry.vault.log_key(connection).public_key)
    note = log_notes.Note.parse(found.checkpoint, place="note")
    head = log_notes.open_checkpoint(note, key, Ed25519Verifier(), place="note")
    assert head.size == found.size
    log_tree.check_inclusion(
        found.entry.leaf, found.index, found.size, found.path, head.root, place="path"
    )
    return receipt


def test_a_chain_gets_a_receipt_and_a_nonce_for_each_entry(live: Any, registry: Registry) -> None:
    for number in range(4):
        receipt = check_answer(live, live.commit(number), registry, number)
        assert receipt.index == number
        assert receipt.root == live.entry(number).root


def test_answers_are_what_the_document_says(live: Any, client: Any) -> None:
    answer = live.commit(0)
    assert ReceiptedView.model_validate(answer).model_dump() == answer
    public = client.get(f"{live.url}/0").json()
    assert ReceiptedView.model_validate(public).model_dump() == public
    assert (public["nonce"], public["receipt"]) == (None, answer["receipt"])
    asked = json.loads(Waiting("c", "checkpoint", 5).body())
    assert WaitingView.model_validate(asked).model_dump() == asked


def test_nonces_come_from_the_secret_that_was_committed_to(live: Any) -> None:
    answers = [live.commit(number) for number in range(3)]
    assert live.close().status_code == 200
    secret = bytes.fromhex(live.asking.get(f"/v1/enrolments/{live.id}/secret").json()["secret"])
    assert entries.secret_commitment(secret) == live.record.nonces.root
    for number, answer in enumerate(answers):
        expected = entries.live_nonce(secret, live.entry(number))
        assert Nonce.from_json(answer["nonce"], "nonce") == expected


def test_the_same_bytes_again_get_the_same_receipt(live: Any, registry: Registry) -> None:
    first = live.commit(0)
    live.commit(1)
    again = live.post(live.entry(0))
    assert again.status_code == 200
    assert again.json()["receipt"] == first["receipt"]
    assert again.json()["nonce"] == first["nonce"]
    check_answer(live, again.json(), registry, 0)
    assert live.close().status_code == 200
    late = live.post(live.entry(1))
    assert late.json()["receipt"] == live.answers[1]["receipt"]


def test_order_and_links(live: Any) -> None:
    refused(live.post(live.shard(1)), 409, "commitment.out-of-order")
    live.commit(0)
    refused(live.post(live.shard(2)), 409, "commitment.out-of-order")
    unlinked = live.shard(1, previous=bytes(32))
    refused(live.post(unlinked), 409, "commitment.wrong-link")
    live.commit(1)
    refused(live.post(live.shard(1, epochs=2)), 409, "commitment.differs")
    other_root = live.shard(1, root=bytes(32))
    refused(live.post(other_root), 409, "commitment.differs")
    refused(live.post(live.start(bytes(32))), 409, "commitment.differs")


def test_weights_that_were_there_before_are_refused(live: Any) -> None:
    live.commit(0)
    again = live.shard(1, root=live.start().root)
    refused(live.post(again), 422, "commitment.repeated-root")


@pytest.mark.parametrize("change", [{"steps": 2}, {"matches": 100}, {"matches": 129}])
def test_shards_that_the_terms_do_not_allow_are_refused(live: Any, change: Any) -> None:
    live.commit(0)
    refused(live.post(live.shard(1, **change)), 422, "commitment.limits")
    assert live.post(live.shard(1)).status_code == 200


def test_no_more_shards_than_the_terms_allow(live: Any) -> None:
    for number in range(7):
        live.commit(number)
    refused(live.post(live.shard(7)), 409, "commitment.too-many")


def test_nothing_after_the_end(live: Any, enrolled: Callable[..., Any]) -> None:
    live.commit(0)
    live.commit(1)
    assert live.close().status_code == 200
    refused(live.post(live.shard(2)), 409, "enrolment.closed")
    other = enrolled()
    other.commit(0)
    assert other.asking.post(f"/v1/enrolments/{other.id}/withdraw").status_code == 200
    refused(other.post(other.shard(1)), 409, "enrolment.withdrawn")


def test_only_the_enrolled_identity_commits(
    live: Any, client_of: Callable[..., Any], enrolled: Callable[..., Any], registry: Registry
) -> None:
    thief = polo.Identity.generate()
    entry = live.start()
    forged = signing.sign(dataclasses.replace(entry, signature=bytes(64)), thief)
    refused(live.post(forged), 422, "commitment.bad-signature")
    stranger = client_of(thief)
    answer = stranger.post(live.url, content=entry.to_bytes())
    refused(answer, 403, "enrolment.not-yours")
    nobody = polo.Identity.generate()
    unknown = client_of(nobody, register=False)
    refused(unknown.post(live.url, content=entry.to_bytes()), 403, "enrolment.not-yours")
    assert nobody.public_key.hex() not in registry.limits.keys._buckets
    elsewhere = enrolled()
    refused(elsewhere.post(entry), 422, "commitment.wrong-enrolment")
    # Nothing of this is in the log.
    assert live.commit(0)["receipt"]["index"] == 0


def test_a_revoked_identity_commits_no_more(live: Any) -> None:
    live.commit(0)
    revoked = live.asking.post(f"/v1/identities/{live.key.id}/revoke", json={})
    assert revoked.status_code == 200
    refused(live.post(live.shard(1)), 403, "caller.revoked")


def test_what_is_no_entry_is_refused(live: Any) -> None:
    data = live.start().to_bytes()
    for body in (b"", b"{}", data[:-1], data + b" ", data.replace(b"entry", b"proof"), b"\xff"):
        refused(live.post(body), 422, "commitment.broken")
    missing = live.asking.post(f"/v1/enrolments/{'0' * 64}/commitments", content=data)
    refused(missing, 404, "enrolment.missing")
    assert live.asking.post("/v1/enrolments/x/commitments", content=data).status_code == 422


def test_a_busy_database_is_said_to_be_busy(
    live: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: str) -> Any:
        raise OperationalError("select", {}, Exception("database is locked"))

    monkeypatch.setattr(registry.sequencer.chains, "get", busy)
    answer = live.post(live.start())
    refused(answer, 503, "registry.busy")
    assert answer.headers["retry-after"]


def test_a_request_counts_once(live: Any, client: Any, registry: Registry) -> None:
    data = live.start().to_bytes()
    header = protocol.sign(
        live.key, "POST", registry.settings.origin, live.url, data,
        time=registry.clock(), nonce=secrets.token_bytes(16),
    )  # fmt: skip
    headers = {"Authorization": header}
    assert client.post(live.url, content=data, headers=headers).status_code == 200
    refused(client.post(live.url, content=data, headers=headers), 401, "caller.replayed")
    changed = live.start(bytes(32)).to_bytes()
    refused(client.post(live.url, content=changed, headers=headers), 401, "caller.bad-signature")
    refused(client.post(live.url, content=data), 401, "caller.missing")


def test_commitments_are_listed_in_pages(live: Any, client: Any) -> None:
    for number in range(4):
        live.commit(number)
    first = client.get(live.url, params={"limit": 3}).json()
    assert [item["shard"] for item in first["items"]] == [0, 1, 2]
    rest = client.get(live.url, params={"limit": 3, "after": first["next"]}).json()
    assert [item["shard"] for item in rest["items"]] == [3]
    assert rest["next"] is None
    found = Entry.from_json(first["items"][1]["entry"], "entry")
    assert found == live.entry(1)
    assert first["items"][1]["receipt"] == live.answers[1]["receipt"]


def test_only_the_prover_sees_the_nonce_again(live: Any, client: Any, registry: Registry) -> None:
    answer = live.commit(0)
    mine = live.asking.get(f"{live.url}/0").json()
    assert mine["nonce"] == answer["nonce"]
    check_answer(live, mine, registry, 0)
    public = client.get(f"{live.url}/0").json()
    assert public["nonce"] is None
    assert public["receipt"] == answer["receipt"]
    refused(client.get(f"{live.url}/1"), 404, "commitment.missing")


def test_after_a_rotation_the_new_key_asks_and_the_old_one_signs(
    live: Any, client_of: Callable[..., Any], registry: Registry
) -> None:
    live.commit(0)
    new = polo.Identity.generate()
    from polo.protocol.requests import rotation_message

    message = rotation_message(live.key.id, live.key.public_key, new.public_key)
    body = {"key": new.public_key.hex(), "signature": new.sign(message).hex()}
    assert live.asking.post(f"/v1/identities/{live.key.id}/rotate", json=body).status_code == 200
    refused(live.post(live.shard(1)), 403, "enrolment.not-yours")
    live.asking = client_of(new, register=False)
    check_answer(live, live.commit(1), registry, 1)
    # It pays for itself; whoever is not known costs the address.
    assert new.public_key.hex() in registry.limits.keys._buckets


def test_the_bytes_on_the_fast_path_are_those_of_the_records(live: Any, registry: Registry) -> None:
    answer = live.post(live.start())
    value = answer.json()
    parts = (
        Inclusion.from_json(value["inclusion"], "x"),
        Nonce.from_json(value["nonce"], "x"),
        Receipt.from_json(value["receipt"], "x"),
    )
    names = ("inclusion", "nonce", "receipt")
    whole = {name: part.to_json() for name, part in zip(names, parts, strict=True)}
    assert answer.content == canonical.encode(whole)
    odd = live.shard(1, metrics={"signature": 5}, evidence={"signature": bytes(32)})
    for entry in (live.start(), live.shard(1), odd):
        assert signed_part(entry.to_bytes(), entry) == entry.message()


class TestFastest:
    """Terms may say how much time lies between two commitments."""

    @pytest.fixture
    def offers(self, offers: str) -> str:
        return f"{offers}fastest = 60\n"

    def test_too_fast_is_refused(self, live: Any, clock: Any) -> None:
        live.commit(0)
        early = live.post(live.shard(1))
        refused(early, 429, "commitment.too-fast")
        assert early.headers["retry-after"] == "60"
        clock.advance(59)
        refused(live.post(live.shard(1)), 429, "commitment.too-fast")
        clock.advance(1)
        live.commit(1)


def test_the_time_of_the_log_never_goes_back(live: Any, clock: Any) -> None:
    first = live.commit(0)["receipt"]["time"]
    clock.advance(-50)
    assert live.commit(1)["receipt"]["time"] == first


class TestDraws:
    """The receipt waits where a challenge is drawn, and comes when it has passed."""

    @pytest.fixture
    def offers(self, offers: str) -> str:
        return f'{offers}history = "any"\ncheckpoints = 1.0\n'

    @pytest.fixture(autouse=True)
    def _drawn(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        from polo.registry.commitments.answers import Waiting

        def draw(_: Any, chain: Any, entry: Entry, now: int, __: Any) -> Waiting | None:
            assert chain.draws
            return Waiting("c" * 32, "checkpoint", now + 60) if entry.number == 1 else None

        monkeypatch.setattr(registry.sequencer, "_draw", draw)

    def test_a_receipt_waits_and_is_released(self, live: Any, registry: Registry) -> None:
        live.commit(0)
        waiting = live.post(live.shard(1))
        assert waiting.status_code == 202
        assert waiting.json()["challenge"]["kind"] == "checkpoint"
        refused(live.post(live.shard(2)), 409, "commitment.waiting")
        with registry.database.begin() as connection:
            service.release(registry, connection, live.id, 1)
            service.release(registry, connection, live.id, 1)
        again = live.post(live.shard(1))
        assert again.status_code == 200
        check_answer(live, again.json(), registry, 1)
        live.answers.append(again.json())
        check_answer(live, live.commit(2), registry, 2)
        assert live.close().status_code == 200
