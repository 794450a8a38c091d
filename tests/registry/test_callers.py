"""Who is believed to be who, and who is not."""

import secrets

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

import polo
from polo.protocol import requests as protocol
from polo.registry import callers
from polo.registry.schema import requests, sessions, tokens
from polo.registry.tokens import service


def identity(number):
    return polo.Identity(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


def header(registry, who, method="GET", target="/v1/tokens", body=b"", **changes):
    options = {"time": registry.clock(), "nonce": secrets.token_bytes(16), **changes}
    origin = options.pop("origin", registry.settings.origin)
    return {"Authorization": protocol.sign(who, method, origin, target, body, **options)}


def refused(answer, status, code):
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    if status == 401 and code != "caller.bad-token":
        assert "PoLO" in answer.headers["www-authenticate"]


@pytest.fixture
def mine(alice):
    """A resource that only alice may change."""
    return f"/v1/identities/{alice.id}/revoke"


@pytest.fixture
def ask(client, client_of, alice, registry, mine):
    """Sends alice's revocation with the header that is given, or that options change."""
    client_of(alice)

    def send(sent=b'{"reason":""}', who=alice, **changes):
        changes = {"target": mine, "body": b'{"reason":""}', "method": "POST", **changes}
        headers = {**header(registry, who, **changes), "Content-Type": "application/json"}
        return client.post(mine, content=sent, headers=headers)

    return send


def test_a_signed_request_is_heard(ask):
    assert ask().status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"target": "/v1/identities"},
        {"body": b'{"reason":"other"}'},
        {"origin": "another.registry/log"},
        {"sent": b'{"reason":"changed on the way"}'},
    ],
)
def test_a_signature_over_anything_else_is_refused(ask, change):
    refused(ask(**change), 401, "caller.bad-signature")


def test_the_query_is_signed_too(client, client_of, alice, registry):
    client_of(alice)
    path = f"/v1/identities/{alice.id}"
    sent = header(registry, alice, target=path)
    refused(client.get(path + "?more=1", headers=sent), 401, "caller.bad-signature")
    assert client.get(path, headers=sent).status_code == 200


@pytest.mark.parametrize("seconds", [-121, 121, 3600])
def test_a_request_of_another_time_is_refused(ask, clock, seconds):
    refused(ask(time=clock() + seconds), 401, "caller.stale")


@pytest.mark.parametrize("seconds", [-120, 120])
def test_clocks_may_differ_a_little(ask, clock, seconds):
    assert ask(time=clock() + seconds).status_code == 200


def test_a_replayed_request_is_refused(client, client_of, alice, registry):
    client_of(alice)
    path = f"/v1/identities/{alice.id}"
    sent = header(registry, alice, target=path)
    assert client.get(path, headers=sent).status_code == 200
    refused(client.get(path, headers=sent), 401, "caller.replayed")


def test_a_replay_is_refused_as_long_as_its_time_is_fresh(
    client, client_of, alice, registry, clock
):
    client_of(alice)
    path = f"/v1/identities/{alice.id}"
    sent = header(registry, alice, target=path, time=clock() + 120)
    assert client.get(path, headers=sent).status_code == 200
    for _ in range(24):  # Others ask, and old nonces are dropped, all the while.
        clock.advance(10)
        assert client.get(path, headers=header(registry, alice, target=path)).status_code == 200
        refused(client.get(path, headers=sent), 401, "caller.replayed")
    clock.advance(1)
    refused(client.get(path, headers=sent), 401, "caller.stale")


def test_old_nonces_do_not_pile_up(client, client_of, alice, registry, clock):
    asking = client_of(alice)
    for _ in range(10):
        clock.advance(100)
        assert asking.get(f"/v1/identities/{alice.id}").status_code == 200
    with registry.database.read() as connection:
        kept = connection.execute(select(func.count()).select_from(requests)).scalar()
    assert kept <= 4


def test_two_keys_may_use_the_same_nonce(client, client_of, alice, bob, registry):
    client_of(alice)
    client_of(bob)
    path, nonce = f"/v1/identities/{alice.id}", bytes(16)
    for who in (alice, bob):
        sent = header(registry, who, target=path, nonce=nonce)
        assert client.get(path, headers=sent).status_code == 200


def test_a_key_that_is_not_registered_is_refused(ask):
    refused(ask(who=identity(9)), 401, "caller.unknown-key")


def test_a_revoked_identity_is_refused(ask):
    assert ask().status_code == 200
    refused(ask(), 403, "caller.revoked")


def test_another_identity_is_not_alice(ask, client_of, bob):
    client_of(bob)
    refused(ask(who=bob), 403, "identity.not-yours")


def test_a_weak_key_cannot_register(client, registry):
    for key in (bytes(32), bytes([1]) + bytes(31)):
        given = protocol.Authorization(key, registry.clock(), bytes(16), bytes(64))
        sent = {"Authorization": given.header()}
        answer = client.post("/v1/identities", json={"name": "weak"}, headers=sent)
        refused(answer, 401, "caller.weak-key")


@pytest.mark.parametrize("text", ["PoLO", "PoLO key=1", "Basic eDp5", "Bearer", "Bearer x", "é"])
def test_other_headers_are_refused(client, text):
    answer = client.get("/v1/tokens", headers={"Authorization": text.encode()})
    refused(answer, 401, "caller.bad-header")


def test_without_a_header_nothing_is_shown(client, mine):
    refused(client.get("/v1/tokens"), 401, "caller.missing")
    refused(client.get("/v1/events"), 401, "caller.missing")
    refused(client.get("/metrics"), 401, "caller.missing")
    refused(client.post(mine, json={}), 401, "caller.missing")
    refused(client.post("/v1/identities", json={"name": "x"}), 401, "caller.missing")


def test_a_token_is_not_advised_where_only_a_signature_will_do(client):
    answer = client.post("/v1/identities", json={"name": "x"})
    refused(answer, 401, "caller.missing")
    assert answer.json()["advice"].endswith("a token will not do here.")
    assert "Bearer polo_" in client.get("/v1/tokens").json()["advice"]


def test_a_token_where_an_identity_must_sign_is_told_so(person):
    answer = person("operator").post("/v1/enrolments", json={"task": "digits"})
    refused(answer, 401, "caller.bad-header")
    assert answer.json()["detail"] == "a token where an identity must sign"
    assert answer.json()["advice"].startswith("Sign the request with an identity's key")


class TestTokens:
    """People."""

    def test_roles(self, person, client_of, alice):
        operator, auditor, prover = person("operator"), person("auditor"), client_of(alice)
        for path, least in (("/v1/events", "auditor"), ("/v1/tokens", "operator")):
            assert operator.get(path).status_code == 200
            if least == "auditor":
                assert auditor.get(path).status_code == 200
            else:
                refused(auditor.get(path), 403, "caller.forbidden")
            refused(prover.get(path), 403, "caller.forbidden")

    def test_an_identity_can_be_made_an_auditor_by_operators_alone(self, person, client_of, alice):
        asking, path = client_of(alice), f"/v1/identities/{alice.id}/role"
        refused(asking.post(path, json={"role": "operator"}), 403, "caller.forbidden")
        assert person("operator").post(path, json={"role": "auditor"}).status_code == 200
        assert asking.get("/v1/events").status_code == 200
        refused(asking.get("/v1/tokens"), 403, "caller.forbidden")

    def test_scopes(self, person, client_of, alice):
        client_of(alice)
        path = f"/v1/identities/{alice.id}/revoke"
        reader = person("operator", scopes=("read",))
        assert reader.get("/v1/events").status_code == 200
        refused(reader.post(path, json={}), 403, "caller.scope")
        writer = person("operator", scopes=("write",))
        refused(writer.get("/v1/events"), 403, "caller.scope")
        refused(writer.get("/v1/tokens"), 403, "caller.scope")
        assert writer.post(path, json={}).status_code == 200

    def test_a_token_expires(self, person, clock):
        operator = person("operator", days=1)
        clock.advance(24 * 3600 - 1)
        assert operator.get("/v1/events").status_code == 200
        clock.advance(1)
        refused(operator.get("/v1/events"), 401, "caller.bad-token")

    def test_a_revoked_token_ends_at_once(self, person):
        boss = person("operator")
        mine = boss.get("/v1/tokens").json()["items"][0]["id"]
        other = person("operator")
        for item in boss.get("/v1/tokens").json()["items"]:
            assert other.get("/v1/events").status_code == 200
            if item["id"] != mine:
                assert boss.delete(f"/v1/tokens/{item['id']}").status_code == 204
                break
        refused(other.get("/v1/events"), 401, "caller.bad-token")
        assert boss.get("/v1/events").status_code == 200

    def test_guesses_and_parts_are_refused(self, client, token_of):
        token = token_of("operator")
        for guess in (token[:-1], token + "x", token.lower(), "polo_" + "A" * 43, "polo_"):
            answer = client.get("/v1/events", headers={"Authorization": f"Bearer {guess}"})
            refused(answer, 401, "caller.bad-token")

    def test_the_database_has_no_token(self, registry, token_of):
        token = token_of("operator")
        with registry.database.read() as connection:
            row = connection.execute(select(tokens)).one()
        assert token.encode() not in b"".join(
            value if isinstance(value, bytes) else str(value).encode() for value in row
        )
        assert bytes(row.hash) == callers.token_hash(token)

    def test_a_token_is_made_listed_and_used(self, person, client):
        asked = {"name": "Ada", "role": "auditor", "scopes": ["read"], "days": 2}
        made = person("operator").post("/v1/tokens", json=asked).json()
        listed = person("operator").get("/v1/tokens").json()["items"]
        mine = next(item for item in listed if item["id"] == made["id"])
        assert "token" not in mine
        assert mine["expires"] - mine["made"] == 2 * 24 * 3600
        sent = {"Authorization": f"Bearer {made['token']}"}
        assert client.get("/v1/events", headers=sent).status_code == 200


class TestSessions:
    """People in front of a browser."""

    @pytest.fixture
    def cookie(self, registry, token_of):
        token = token_of("operator")
        with registry.database.begin() as connection:
            made, _ = service.sign_in(connection, token, hours=1, now=registry.clock())
        return made

    @pytest.fixture
    def ask(self, client, registry, cookie):
        def send(method, path, **options):
            headers = {"Cookie": f"{callers.cookie_name(registry)}={cookie}"}
            return client.request(
                method, path, headers={**headers, **options.pop("headers", {})}, **options
            )

        return send

    @pytest.fixture
    def change(self, alice, client_of):
        client_of(alice)
        return f"/v1/identities/{alice.id}/revoke"

    def test_a_session_looks(self, ask):
        assert ask("GET", "/v1/events").status_code == 200

    def test_a_session_changes_nothing_without_the_pages_word(self, ask, change, cookie):
        refused(ask("POST", change, json={}), 403, "caller.csrf")
        wrong = {"X-CSRF-Token": callers.csrf_token("another")}
        refused(ask("POST", change, json={}, headers=wrong), 403, "caller.csrf")
        right = {"X-CSRF-Token": callers.csrf_token(cookie)}
        assert ask("POST", change, json={}, headers=right).status_code == 200

    def test_a_session_ends(self, ask, clock):
        clock.advance(3600)
        refused(ask("GET", "/v1/events"), 401, "caller.missing")

    def test_it_ends_with_its_token(self, ask, registry, person):
        with registry.database.read() as connection:
            token = connection.execute(select(sessions.c.token)).scalar()
        assert person("operator").delete(f"/v1/tokens/{token}").status_code == 204
        refused(ask("GET", "/v1/events"), 401, "caller.missing")

    def test_it_ends_by_signing_out(self, ask, registry, cookie):
        with registry.database.begin() as connection:
            service.sign_out(connection, callers.token_hash(cookie))
        refused(ask("GET", "/v1/events"), 401, "caller.missing")

    def test_the_word_does_not_give_the_cookie_away(self, cookie):
        assert cookie not in callers.csrf_token(cookie)
