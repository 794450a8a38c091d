"""Identities: registering, changing the key, taking out of use."""

import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

import polo
from polo.protocol.requests import rotation_message
from polo.registry.schema import events


def identity(number):
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


def rotation(old, new, who):
    signature = new.sign(rotation_message(who.id, old.public_key, new.public_key))
    return {"key": new.public_key.hex(), "signature": signature.hex()}


def code(answer):
    return answer.status_code, answer.json().get("code")


def test_registering_twice_gives_the_same(client_of, alice):
    asking = client_of(alice, name="Alice")
    again = asking.post("/v1/identities", json={"name": "Alice"})
    assert again.status_code == 201
    assert again.json()["id"] == alice.id
    assert code(asking.post("/v1/identities", json={"name": "Eve"})) == (409, "identity.known")


def test_a_race_registers_once(client_of, alice, registry):
    asking = client_of(alice, register=False)
    answers = []

    def work():
        answers.append(asking.post("/v1/identities", json={"name": "Alice"}).status_code)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {201, 409}
    assert 201 in answers
    with registry.database.read() as connection:
        noted = connection.execute(
            select(events).where(events.c.action == "identity.registered")
        ).all()
    assert len(noted) == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"name": ""}, {"name": "x" * 129}, {"name": "a\nb"}, {"name": "a", "role": "operator"}],
)
def test_nobody_chooses_a_role_or_an_odd_name(client_of, alice, body):
    answer = client_of(alice, register=False).post("/v1/identities", json=body)
    assert code(answer) == (422, "body.invalid")


def test_a_key_is_changed(client, client_of, alice):
    first, new = client_of(alice), identity(21)
    path = f"/v1/identities/{alice.id}/rotate"
    answer = first.post(path, json=rotation(alice, new, alice))
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["key"]) == (alice.id, new.public_key.hex())
    assert [item["until"] is None for item in answer.json()["keys"]] == [False, True]
    assert code(first.get("/v1/tokens")) == (401, "caller.unknown-key")
    second = client_of(new, register=False)
    assert code(second.get("/v1/tokens")) == (403, "caller.forbidden")
    assert second.get(f"/v1/identities/{alice.id}").json()["key"] == new.public_key.hex()


def test_a_key_leads_to_its_identity(client, client_of, alice, bob):
    first, new = client_of(alice), identity(21)
    first.post(f"/v1/identities/{alice.id}/rotate", json=rotation(alice, new, alice))
    for key in (alice, new):
        found = client.get("/v1/identities", params={"key": key.public_key.hex()})
        assert (found.status_code, found.json()["id"]) == (200, alice.id)
    nobody = client.get("/v1/identities", params={"key": bob.public_key.hex()})
    assert code(nobody) == (404, "identity.missing")
    assert client.get("/v1/identities", params={"key": "x"}).status_code == 422


def test_an_old_key_never_comes_back(client_of, alice, bob):
    first, new = client_of(alice), identity(21)
    first.post(f"/v1/identities/{alice.id}/rotate", json=rotation(alice, new, alice))
    assert code(first.post("/v1/identities", json={"name": "x"})) == (409, "identity.known")
    other = client_of(bob)
    taken = other.post(f"/v1/identities/{bob.id}/rotate", json=rotation(bob, alice, bob))
    assert code(taken) == (409, "identity.known")


def test_nobody_rotates_to_a_key_they_do_not_hold(client_of, alice):
    asking, victim, wrong = client_of(alice), identity(22), identity(23)
    body = rotation(alice, wrong, alice) | {"key": victim.public_key.hex()}
    answer = asking.post(f"/v1/identities/{alice.id}/rotate", json=body)
    assert code(answer) == (422, "caller.bad-signature")


def test_nobody_rotates_another(client_of, alice, bob):
    client_of(alice)
    new = identity(21)
    answer = client_of(bob).post(
        f"/v1/identities/{alice.id}/rotate", json=rotation(alice, new, alice)
    )
    assert code(answer) == (403, "identity.not-yours")


def test_a_race_of_rotations_leaves_one_key(client_of, alice, client):
    asking = client_of(alice)
    answers = []

    def work(number):
        body = rotation(alice, identity(number), alice)
        answers.append(asking.post(f"/v1/identities/{alice.id}/rotate", json=body).status_code)

    threads = [threading.Thread(target=work, args=(30 + number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(200) == 1
    keys = client.get(f"/v1/identities/{alice.id}").json()["keys"]
    assert sum(item["until"] is None for item in keys) == 1
    assert len(keys) == 2


def test_revocation_is_for_good(client_of, person, alice, clock):
    asking, operator = client_of(alice), person("operator")
    path = f"/v1/identities/{alice.id}/revoke"
    assert operator.post(path, json={"reason": "lost"}).json()["revoked"] == clock()
    clock.advance(10)
    assert operator.post(path, json={}).json()["revoked"] == clock() - 10
    assert code(asking.get(f"/v1/identities/{alice.id}")) == (403, "caller.revoked")
    again = asking.post("/v1/identities", json={"name": "somebody"})
    assert code(again) == (409, "identity.known")


def test_what_was_done_can_be_read_back(client_of, person, alice):
    asking = client_of(alice, name="Alice")
    asking.post(f"/v1/identities/{alice.id}/revoke", json={"reason": "done"})
    auditor = person("auditor")
    found = auditor.get("/v1/events", params={"subject": alice.id}).json()["items"]
    assert [item["action"] for item in found] == ["identity.registered", "identity.revoked"]
    assert [item["actor"] for item in found] == [alice.id, alice.id]
    assert found[1]["detail"] == "done"
    assert all(item["request"] for item in found)


def test_events_come_in_pages(person):
    auditor = person("auditor")
    for _ in range(4):
        person("auditor")
    first = auditor.get("/v1/events?limit=3").json()
    second = auditor.get(f"/v1/events?limit=3&after={first['next']}").json()
    ids = [item["id"] for item in first["items"] + second["items"]]
    assert ids == sorted(set(ids))
    assert len(ids) == 5
    assert second["next"] is None
