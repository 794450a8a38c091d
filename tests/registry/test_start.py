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


def test_the_interface_says_who_may_ask(client):
    paths = client.get("/v1/openapi.json").json()["paths"]
    signature, token = {"signature": []}, {"token": []}
    commitments = "/v1/enrolments/{enrolment}/commitments"
    assert paths["/v1/identities"]["post"]["security"] == [signature]
    assert paths[commitments]["post"]["security"] == [signature]
    assert paths["/v1/scans"]["post"]["security"] == [signature, token]
    assert paths["/metrics"]["get"]["security"] == [signature, token]
    assert paths[commitments + "/{shard}"]["get"]["security"] == [{}, signature, token]
    assert "security" not in paths["/healthz"]["get"]
    free = {"/v1/log/cosignatures"}  # The line itself shows who the witness is.
    for path, operations in paths.items():
        for method in operations.keys() - {"get"}:
            assert "security" in operations[method] or path in free, f"{method} {path}"


def test_the_interface_says_what_answers_a_commitment(client):
    document = client.get("/v1/openapi.json").json()
    commitments = "/v1/enrolments/{enrolment}/commitments"
    for method, path in (("post", commitments), ("get", commitments + "/{shard}")):
        answers = document["paths"][path][method]["responses"]
        for status, name in (("200", "ReceiptedView"), ("202", "WaitingView")):
            schema = answers[status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{name}"}
            assert document["components"]["schemas"][name]["required"]


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
