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


def test_the_interface_describes_itself(client):
    document = client.get("/v1/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"signature", "token"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), f"{method} {path}"
            assert operation.get("tags"), f"{method} {path}"


def test_problems_explain_themselves(client):
    missing = client.get("/v1/nothing").json()
    page, _, anchor = missing["type"].partition("#")
    assert page == "http://127.0.0.1:8440/v1/problems"
    text = client.get("/v1/problems").text
    assert f'<a id="{anchor}"></a>' in text


def test_an_identity_registers_and_is_found(client_of, alice, client):
    client_of(alice, name="Alice")
    found = client.get(f"/v1/identities/{alice.id}").json()
    assert (found["id"], found["name"], found["role"]) == (alice.id, "Alice", "prover")
