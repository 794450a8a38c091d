"""What goes over the wire, by the server that people run: heads, bodies, limits, headers, logs."""

import asyncio
import contextlib
import io
import json
import logging
import socket
import time
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import polo
from polo.registry import observing, problems, serving, wire
from polo.registry.app import create_app
from polo.registry.callers import csrf_token
from polo.registry.limits import BURST_SECONDS, Buckets, network
from polo.registry.migrations import latest
from polo.registry.settings import Settings


@pytest.fixture
def database_url(tmp_path):
    """One database is enough here: the wire is the same."""
    return f"sqlite:///{tmp_path / 'data' / 'registry.sqlite'}"


@pytest.fixture
def settings(tmp_path, database_url):
    return Settings(
        data=tmp_path / "data",
        database=database_url,
        origin="registry.test/log",
        body_seconds=1,
        header_seconds=1,
        max_body=10_000,
        rate=100_000,
        guest_rate=100_000,
        trusted_proxies=("10.0.0.0/8",),
    )


def connect(served):
    parts = urlsplit(served)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def read_all(connection):
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def problem_in(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, answer
    return json.loads(body)


POST = b"POST /v1/identities HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


class TestDawdlers:
    """Clients that keep the server waiting."""

    @pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
    def test_half_a_head_is_cut_off(self, served, sent):
        with connect(served) as connection:
            connection.sendall(sent)
            begun = time.monotonic()
            assert read_all(connection) == b""
            assert 0.5 < time.monotonic() - begun < 5

    def test_a_head_that_trickles_in_is_cut_off(self, served):
        with connect(served) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
            begun = time.monotonic()
            with contextlib.suppress(OSError):
                while time.monotonic() - begun < 10:
                    connection.sendall(b"X-More: 1\r\n")
                    time.sleep(0.1)
            assert time.monotonic() - begun < 5

    def test_the_second_request_of_a_connection_has_no_longer(self, served):
        with connect(served) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal")
            begun = time.monotonic()
            assert read_all(connection).endswith(b"ok\n")
            assert time.monotonic() - begun < 5

    def test_a_slow_body_is_answered(self, served):
        with connect(served) as connection:
            connection.sendall(POST + b"Content-Length: 500\r\n\r\n{")
            begun = time.monotonic()
            answer = read_all(connection)
            assert 0.5 < time.monotonic() - begun < 5
        assert problem_in(answer)["code"] == "body.slow"

    def test_a_slow_answer_is_not_a_slow_body(self, served, monkeypatch):
        newest = latest()

        def slow():
            time.sleep(2)
            return newest

        monkeypatch.setattr("polo.registry.migrations.latest", slow)
        assert httpx2.get(f"{served}/readyz", timeout=10).status_code == 200


class TestEndless:
    """Clients that do not say how much they send."""

    @pytest.fixture
    def settings(self, settings):
        """Time for the slowest machine: here it is the size that must be refused."""
        return replace(settings, body_seconds=60, header_seconds=60)

    def test_a_body_that_does_not_say_so(self, served, registry):
        sent = 0

        def endless():
            nonlocal sent
            for _ in range(100_000):
                sent += 1000
                yield b"x" * 1000

        headers = {"Content-Type": "application/json"}
        with contextlib.suppress(httpx2.TransportError):  # The answer may be lost in the hang-up.
            answer = httpx2.post(
                f"{served}/v1/identities", content=endless(), headers=headers, timeout=60
            )
            assert answer.json()["code"] == "body.too-large"
        assert sent < 100_000_000
        refused = registry.metrics.refused.labels("body.too-large")._value
        deadline = time.monotonic() + 10  # It is counted after it was answered.
        while refused.get() == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert refused.get() == 1


class TestSizes:
    """Clients that send too much."""

    def test_a_body_that_says_it_is_too_large(self, served):
        answer = httpx2.post(f"{served}/v1/identities", content=b"x" * 10_001)
        assert (answer.status_code, answer.json()["code"]) == (413, "body.too-large")

    def test_it_is_not_waited_for(self, served):
        with connect(served) as connection:
            connection.sendall(POST + b"Content-Length: 10001\r\n\r\n")
            assert problem_in(read_all(connection))["code"] == "body.too-large"

    def test_a_body_that_comes_with_its_head_is_none_of_it(self, served, monkeypatch):
        monkeypatch.setattr(serving, "MAX_HEAD", 1000)
        with connect(served) as connection:
            head = POST + b"Connection: close\r\nContent-Length: 9000\r\n\r\n"
            connection.sendall(head + b"x" * 9000)  # One packet, and one read.
            assert problem_in(read_all(connection))["status"] in (400, 401, 422)

    def test_an_endless_head(self, served):
        sent = 0
        with connect(served) as connection, contextlib.suppress(OSError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
            while sent < 20_000_000:
                connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
                sent += 1005
        assert sent < 20_000_000

    @pytest.mark.parametrize(
        "sent",
        [
            b"\x00\xff\xfe\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            POST + b"Content-Length: -5\r\n\r\n",
            POST + b"Content-Length: " + b"0" * 5000 + b"1\r\n\r\nx",
            POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ],
    )
    def test_what_is_no_http_is_refused(self, served, sent):
        with connect(served) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert answer == b"" or answer.split(b" ", 2)[1][:1] == b"4", answer
        assert httpx2.get(f"{served}/healthz").text == "ok\n"

    def test_all_bodies_together_are_bounded(self, registry, monkeypatch):
        """Many clients with the largest body each do not fill the memory."""
        monkeypatch.setattr(wire, "MOST_HELD", 25_000)
        seen, held = [], wire.Held()
        app = wire.Wire(create_app(registry), registry, held)

        async def ask():
            sent, gate = [], asyncio.Event()

            async def receive():
                if sent:
                    await gate.wait()
                    return {"type": "http.disconnect"}
                sent.append(1)
                return {"type": "http.request", "body": b"x" * 9000, "more_body": True}

            async def send(message):
                if message["type"] == "http.response.start":
                    seen.append(message["status"])

            scope = {"type": "http", "method": "POST", "path": "/v1/identities", "headers": []}
            await app({**scope, "query_string": b"", "client": ("192.0.2.1", 1)}, receive, send)

        async def several():
            await asyncio.gather(*(ask() for _ in range(4)))

        asyncio.run(several())
        assert 503 in seen
        assert held.count == 0


class TestProblems:
    """Everything that is refused is refused the same way."""

    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/v1/nothing", 404, "resource.missing"),
            ("DELETE", "/healthz", 405, "resource.method"),
            ("GET", "/v1/identities/xyz", 422, "body.invalid"),
            ("GET", f"/v1/identities/{'0' * 64}", 404, "identity.missing"),
            ("GET", "/v1/tokens?limit=0", 401, "caller.missing"),
        ],
    )
    def test_codes(self, client, method, path, status, code):
        answer = client.request(method, path)
        body = answer.json()
        assert (answer.status_code, body["code"]) == (status, code)
        assert answer.headers["content-type"] == problems.MEDIA_TYPE
        assert body["request"] == answer.headers["x-request-id"]
        assert body["type"].endswith("#" + code.replace(".", "-"))
        assert {"title", "status", "detail", "advice"} <= body.keys()

    def test_wrong_fields_are_named_and_their_values_are_not_shown(self, person):
        asked = {"name": "n", "role": "polo_secret", "scopes": ["read"]}
        answer = person("operator").post("/v1/tokens", json=asked)
        assert (answer.status_code, answer.json()["code"]) == (422, "body.invalid")
        assert answer.json()["errors"][0]["at"] == "body.role"
        assert "polo_secret" not in answer.text

    @pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 9000, b""])
    def test_what_is_no_json_is_refused(self, person, body):
        answer = person("operator").post(
            "/v1/tokens", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 422)
        assert answer.json()["code"].startswith("body.")

    def test_a_failure_nobody_foresaw(self, client, registry, monkeypatch, logged):
        def fail(_):
            raise RuntimeError("polo_abcdefghijklmnopqrstuvwxyz is in the error")

        monkeypatch.setattr(registry.vault, "published", fail)
        answer = client.get("/v1/keys")
        assert (answer.status_code, answer.json()["code"]) == (500, "error.internal")
        assert "RuntimeError" not in answer.text
        assert "RuntimeError" in logged()
        assert "abcdefghijkl" not in logged()
        assert answer.json()["request"] in logged()

    def test_a_database_that_is_gone(self, client, registry, tmp_path, monkeypatch):
        def gone():
            from sqlalchemy.exc import OperationalError

            raise OperationalError("select", {}, Exception("the database is gone"))

        monkeypatch.setattr(registry.database, "read", gone)
        answer = client.get("/v1/keys")
        assert (answer.status_code, answer.json()["code"]) == (503, "registry.busy")
        assert answer.headers["retry-after"]


class TestHeaders:
    """What browsers are told."""

    @pytest.mark.parametrize("path", ["/healthz", "/v1/keys", "/v1/nothing", "/v1/tokens"])
    def test_every_answer_has_them(self, client, path):
        answer = client.get(path)
        for name in wire.HEADERS:
            assert name in answer.headers, name
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "strict-transport-security" not in answer.headers
        assert "server" not in answer.headers

    def test_https_is_insisted_on_where_it_is_there(self, registry):
        object.__setattr__(registry.settings, "public_url", "https://polo.example")
        app = wire.Wire(create_app(registry), registry, wire.Held())
        assert b"strict-transport-security" in dict(app._headers)

    def test_request_ids_differ(self, client):
        ids = {client.get("/healthz").headers["x-request-id"] for _ in range(5)}
        assert len(ids) == 5


class TestAddresses:
    """Where a request came from."""

    def origin(self, settings, client, **headers):
        raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        return wire._origin(settings, {"client": (client, 1)}, raw)

    def test_anybody_can_write_the_header(self, settings):
        found, number = self.origin(
            settings, "192.0.2.9", x_forwarded_for="198.51.100.1", x_request_id="chosen-by-them"
        )
        assert found == "192.0.2.9"
        assert number != "chosen-by-them"

    def test_a_trusted_proxy_is_believed(self, settings):
        found, number = self.origin(
            settings, "10.1.2.3", x_forwarded_for="198.51.100.1", x_request_id="0123456789ab"
        )
        assert (found, number) == ("198.51.100.1", "0123456789ab")

    def test_what_a_client_wrote_before_the_proxy_is_not(self, settings):
        forged = "203.0.113.5, 198.51.100.1, 10.9.9.9"
        assert self.origin(settings, "10.1.2.3", x_forwarded_for=forged)[0] == "198.51.100.1"

    def test_no_settings_no_proxies(self, tmp_path):
        assert not Settings(data=tmp_path).is_proxy("127.0.0.1")


class TestRates:
    """Callers that ask too often."""

    @pytest.fixture
    def settings(self, settings):
        object.__setattr__(settings, "rate", 2)
        object.__setattr__(settings, "guest_rate", 1)
        return settings

    @pytest.fixture
    def registry(self, registry):
        """No bucket refills while a test is slow."""
        registry.limits.keys._clock = registry.limits.addresses._clock = lambda: 0.0
        return registry

    def test_an_address_runs_dry_and_is_told_when_to_come_back(self, client):
        for _ in range(BURST_SECONDS):
            assert client.get("/v1/keys").status_code == 200
        answer = client.get("/v1/keys")
        assert (answer.status_code, answer.json()["code"]) == (429, "rate.exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/healthz").status_code == 200

    def test_signed_requests_cost_their_key_alone(self, client, client_of, alice, bob, registry):
        first, second = client_of(alice), client_of(bob)
        path = f"/v1/identities/{alice.id}"
        for _ in range(2 * BURST_SECONDS):
            assert first.get(path).status_code == 200
        assert first.get(path).status_code == 429
        assert second.get(path).status_code == 200
        assert client.get(path).status_code == 200

    def test_guessing_tokens_is_slow(self, client):
        for _ in range(2 * BURST_SECONDS):
            sent = {"Authorization": "Bearer polo_" + "A" * 43}
            last = client.get("/v1/tokens", headers=sent).status_code
        assert last == 429
        assert client.get("/v1/keys").status_code == 429

    def test_new_keys_without_end_cost_their_address(self, client_of, client):
        answers = []
        for number in range(BURST_SECONDS + 2):
            key = polo.Identity(Ed25519PrivateKey.from_private_bytes(bytes([50 + number] * 32)))
            asking = client_of(key, register=False)
            answers.append(asking.post("/v1/identities", json={"name": "x"}).status_code)
        assert (answers[0], answers[-1]) == (201, 429)

    def test_a_header_that_nobody_asks_for_is_no_way_around(self, client):
        for _ in range(BURST_SECONDS):
            client.get("/v1/keys", headers={"Authorization": "Bearer polo_x"})
        answer = client.get("/v1/keys", headers={"Authorization": "Bearer polo_x"})
        assert answer.status_code == 429

    def test_made_up_keys_do_not_fill_the_memory(self):
        buckets = Buckets(1, most=100)
        for number in range(1000):
            buckets.take(f"key {number}")
        assert len(buckets) == 100

    def test_buckets_refill(self):
        now = [0.0]
        buckets = Buckets(2, clock=lambda: now[0])
        for _ in range(2 * BURST_SECONDS):
            buckets.take("a")
        with pytest.raises(problems.Problem):
            buckets.take("a")
        now[0] = 1.0
        buckets.take("a")
        buckets.take("a")
        with pytest.raises(problems.Problem):
            buckets.take("a")

    def test_a_household_counts_as_one(self):
        assert network("2001:db8::1") == network("2001:db8::ffff:1")
        assert network("2001:db8::1") != network("2001:db8:0:1::1")
        assert network("::ffff:192.0.2.1") == "192.0.2.1"


@pytest.fixture
def logged():
    """All that is logged meanwhile, as the operator gets it."""
    root, stream = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    observing.log_to(stream, "debug")
    yield stream.getvalue
    root.handlers[:] = before
    root.setLevel(level)


class TestLogs:
    """One line of JSON a request, and no secret in it."""

    def test_a_request_leaves_a_line(self, client, logged):
        answer = client.get("/v1/keys?token=polo_inthequeryinthequery")
        line = next(json.loads(item) for item in logged().splitlines() if '"/v1/keys"' in item)
        assert line["request"] == answer.headers["x-request-id"]
        assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/keys", 200)
        assert "inthequery" not in logged()

    def test_secrets_are_not_in_the_log(self, registry, client, client_of, person, alice, logged):
        secrets = []
        operator = person("operator")
        secrets.append(operator.headers["Authorization"].split()[1])
        asked = {"name": "Ada", "role": "auditor", "scopes": ["read"]}
        secrets.append(operator.post("/v1/tokens", json=asked).json()["token"])
        seen = []
        asking = client_of(alice)
        asking.client.event_hooks["request"].append(
            lambda request: seen.append(request.headers.get("authorization", ""))
        )
        asking.get(f"/v1/identities/{alice.id}")
        asking.post(f"/v1/identities/{alice.id}/rotate", json={"key": "0" * 64, "signature": "x"})
        client.get("/v1/tokens", headers={"Authorization": "Bearer polo_" + "Z" * 43})
        client.get("/v1/keys", headers={"Cookie": "polo-session=" + "Y" * 43})
        secrets += ["Z" * 43, "Y" * 43, csrf_token("Y" * 43)]
        for header in seen:
            secrets += [part.partition("=")[2] for part in header.split(",")[2:]]
        with registry.database.read() as connection:
            issuer = registry.vault.issuer(connection)
        secrets.append(issuer._private.private_bytes_raw().hex())
        text = logged()
        assert alice.id in text
        assert len(secrets) > 6
        for secret in secrets:
            assert secret
            assert secret not in text

    @pytest.mark.parametrize(
        "text",
        [
            "Authorization: PoLO key=aa,time=1,nonce=SECRET,signature=SECRET",
            "Bearer SECRET",
            "polo_SECRETSECRETSECRET",
            "postgresql://user:SECRET@host/name",
            "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----",
            "the row was (b'SECRETSECRETSECRETSECRET', 7)",
            "?token=SECRET&csrf=SECRET",
        ],
    )
    def test_what_looks_like_a_secret_is_taken_out(self, text, logged):
        logging.getLogger("elsewhere").warning("%s", text, extra={"more": text})
        try:
            raise ValueError(text)
        except ValueError:
            logging.getLogger("elsewhere").exception("failed")
        assert "SECRET" not in logged()
        assert len(logged().splitlines()) == 2

    def test_who_hangs_up_is_no_failure_of_the_registry(self, served, logged):
        path = f"/v1/enrolments/{'ab' * 32}/commitments"
        with connect(served) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf of it"
            connection.sendall(head.encode())
        deadline = time.monotonic() + 5
        while f'"{path}"' not in logged() and time.monotonic() < deadline:
            time.sleep(0.02)
        line = next(json.loads(item) for item in logged().splitlines() if f'"{path}"' in item)
        assert (line["status"], line["code"]) == (400, "body.broken")
        assert "Traceback" not in logged()

    def test_lines_cannot_be_made_up(self, client, logged):
        client.get("/v1/%0a%7b%22level%22%3a%22error%22%7d")
        for line in logged().splitlines():
            assert json.loads(line)["level"] != "error"


def test_metrics_name_routes_and_not_paths(client, person, alice, client_of):
    client_of(alice)
    client.get(f"/v1/identities/{alice.id}")
    client.get("/v1/made-up-by-a-stranger")
    client.request("FROBNICATE", "/healthz")
    text = person("auditor").get("/metrics").text
    assert 'route="/v1/identities/{identity}"' in text
    assert alice.id not in text
    assert "stranger" not in text
    assert "FROBNICATE" not in text
    assert 'polo_refused_total{code="resource.missing"} 1.0' in text
