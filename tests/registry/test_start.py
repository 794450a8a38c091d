"""A registry opens, answers, and says who it is."""

from polo.registry import vault


def test_it_is_alive_and_ready(client):
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").text == "ready\n"


def test_it_says_who_it_is(client, registry):
    answer = client.get("/v1/keys").json()
    assert answer["origin"] == registry.settings.origin
    assert answer["log"].startswith(registry.settings.origin + "+")
    assert sorted(item["use"] for item in answer["keys"]) == [vault.ISSUER, vault.LOG]


def test_an_identity_registers_and_is_found(client_of, alice, client):
    client_of(alice, name="Alice")
    found = client.get(f"/v1/identities/{alice.id}").json()
    assert (found["id"], found["name"], found["role"]) == (alice.id, "Alice", "prover")
