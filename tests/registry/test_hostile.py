"""What strangers try over the wire, against the server that people run.

Everything is refused with a stable code, nothing is lost by it, and the registry goes on answering.
"""

import concurrent.futures
import hashlib
import json
import secrets
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx2
import live_chain
import pytest
from sqlalchemy import select

from polo.protocol import requests as protocol
from polo.registry.context import Registry
from polo.registry.schema import identities
from polo.registry.serving import server_of
from polo.registry.settings import Settings

ORIGIN = "registry.test/log"
LIMIT = 64 * 1024


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def settings(request, tmp_path_factory):
    """Impatient, and small. One registry for all tests of a database: it must bear them all."""
    data = tmp_path_factory.mktemp("hostile") / "data"
    url = f"sqlite:///{data / 'registry.sqlite'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").create()
    return Settings(
        data=data,
        database=url,
        origin=ORIGIN,
        rate=100_000,
        guest_rate=100_000,
        max_body=LIMIT,
        body_seconds=1,
        header_seconds=1,
    )


class Clock:
    """Starts at a moment, and goes on when it is told to."""

    def __init__(self):
        self.now = 1_800_000_000

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def registry(settings, clock):
    opened = Registry.open(settings, migrate=True, clock=clock)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def served(registry):
    """The address of the server that people run."""
    server = server_of(registry, port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def wire(served):
    with httpx2.Client(base_url=served, timeout=20) as client:
        yield client


@pytest.fixture
def chain(registry, wire):
    prover = live_chain.identity(secrets.randbits(60))
    made = live_chain.enrol(registry, prover)
    made.clock = registry.clock
    made.commit(wire)
    return made


@pytest.fixture(autouse=True)
def unharmed(registry, chain, wire):
    """Whatever a test did: the registry answers, and the chain goes on where it was."""
    yield
    assert wire.get("/readyz").text == "ready\n"
    chain.commit(wire)
    items = wire.get(chain.path, params={"limit": 500}).json()["items"]
    found = [live_chain.Receipt.from_json(item["receipt"], "r").to_bytes() for item in items]
    assert found == chain.receipts


def refused(answer, status, code):
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def signed(identity, clock, method, path, body=b"", **changes):
    """The header of a signed request."""
    options = {"time": clock(), "nonce": secrets.token_bytes(16), **changes}
    origin = options.pop("origin", ORIGIN)
    return {"Authorization": protocol.sign(identity, method, origin, path, body, **options)}


def conversation(address, *parts, pause=0.0, longest=15.0):
    """Send bytes on a new connection, and give all that comes back until it is closed."""
    host = urlsplit(address)
    got = b""
    with socket.create_connection((host.hostname, host.port), timeout=longest) as line:
        try:
            for part in parts:
                line.sendall(part)
                time.sleep(pause)
        except OSError:
            pass  # It hung up on us, which is an answer, too.
        try:
            while piece := line.recv(65536):
                got += piece
        except ConnectionError:
            pass
    return got


# --- requests that were signed for something else -------------------------------------------------


def test_a_request_holds_once(wire, chain, registry):
    headers = signed(chain.prover, registry.clock, "GET", "/v1/enrolments")
    assert wire.get("/v1/enrolments", headers=headers).status_code == 200
    refused(wire.get("/v1/enrolments", headers=headers), 401, "caller.replayed")
    body = chain.entry().to_bytes()
    headers = chain.headers(body)
    assert wire.post(chain.path, content=body, headers=headers).status_code == 200
    refused(wire.post(chain.path, content=body, headers=headers), 401, "caller.replayed")
    # The entry itself is answered again, to a request that is signed anew.
    answer = wire.post(chain.path, content=body, headers=chain.headers(body))
    chain.accept(chain.entry(), answer.json())


def test_a_nonce_is_spent_once_among_many(wire, chain, registry):
    headers = signed(chain.prover, registry.clock, "GET", "/v1/enrolments")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(wire.get, "/v1/enrolments", headers=headers) for _ in range(24)]
        codes = [item.result().status_code for item in tries]
    assert sorted(codes) == [200] + [401] * 23


@pytest.mark.parametrize("what", ["method", "path", "query", "body", "origin", "escape"])
def test_a_signature_is_for_one_request(wire, chain, registry, what):
    body = chain.entry().to_bytes()
    asked = {"method": "POST", "path": chain.path, "body": body}
    if what == "method":
        headers = signed(chain.prover, registry.clock, "PUT", chain.path, body)
    elif what == "origin":
        headers = signed(chain.prover, registry.clock, "POST", chain.path, body, origin="other")
    else:
        headers = signed(chain.prover, registry.clock, "POST", chain.path, body)
    if what == "path":
        other = live_chain.enrol(registry, chain.prover)
        asked["path"] = other.path
    elif what == "query":
        asked["path"] += "?limit=3"
    elif what == "body":
        asked["body"] += b" "
    elif what == "escape":
        asked["path"] = asked["path"].replace("/v1/", "/%761/")
    answer = wire.request(asked["method"], asked["path"], content=asked["body"], headers=headers)
    refused(answer, 401, "caller.bad-signature")


@pytest.mark.parametrize("seconds", [-121, 121, -(10**9), 10**9])
def test_old_and_early_requests(wire, chain, registry, seconds):
    moment = registry.clock() + seconds
    headers = signed(chain.prover, registry.clock, "GET", "/v1/enrolments", time=moment)
    refused(wire.get("/v1/enrolments", headers=headers), 401, "caller.stale")


@pytest.mark.parametrize(
    "header",
    [
        "PoLO",
        "PoLO key=00",
        "PoLO key=" + "zz" * 32 + ",time=1,nonce=" + "00" * 16 + ",signature=" + "00" * 64,
        "PoLO " + "x" * 5000,
        "Basic YWRtaW46YWRtaW4=",
        "Bearer",
        "Bearer polo_" + "a" * 500,
        "Bearer polo_\u00e9".encode(),
    ],
)
def test_headers_that_say_nothing(wire, header):
    answer = wire.get("/v1/enrolments", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.json()["code"] in ("caller.bad-header", "caller.bad-token")


def test_a_key_that_anybody_can_sign_for(wire, registry):
    weak = (1).to_bytes(32, "little")
    header = protocol.Authorization(weak, registry.clock(), bytes(16), weak + bytes(32)).header()
    answer = wire.get("/v1/enrolments", headers={"Authorization": header})
    refused(answer, 401, "caller.weak-key")


# --- tokens that were stolen, have expired, or are for less ---------------------------------------


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_tokens_end(wire, token_of, clock, registry):
    token = token_of("operator", days=1)
    made = wire.get("/v1/tokens", headers=bearer(token))
    assert made.status_code == 200
    clock.now += 86_400
    refused(wire.get("/v1/tokens", headers=bearer(token)), 401, "caller.bad-token")
    fresh = token_of("operator")
    items = wire.get("/v1/tokens", headers=bearer(fresh)).json()["items"]
    for item in sorted(items, key=lambda item: item["made"]):  # Its own comes last.
        wire.delete(f"/v1/tokens/{item['id']}", headers=bearer(fresh))
    refused(wire.get("/v1/tokens", headers=bearer(fresh)), 401, "caller.bad-token")


def test_a_stolen_token_does_what_its_scope_says(wire, chain, token_of):
    reading = bearer(token_of("operator", scopes=("read",)))
    wanted = {"name": "mine", "role": "operator", "scopes": ["admin"]}
    refused(wire.post("/v1/tokens", json=wanted, headers=reading), 403, "caller.scope")
    revoke = f"/v1/identities/{chain.prover.id}/revoke"
    refused(wire.post(revoke, json={}, headers=reading), 403, "caller.scope")
    auditing = bearer(token_of("auditor"))
    refused(wire.post("/v1/tokens", json=wanted, headers=auditing), 403, "caller.forbidden")
    role = f"/v1/identities/{chain.prover.id}/role"
    refused(wire.post(role, json={"role": "operator"}, headers=auditing), 403, "caller.forbidden")
    # No token commits: that needs the prover's key.
    body = chain.entry().to_bytes()
    operating = bearer(token_of("operator"))
    refused(wire.post(chain.path, content=body, headers=operating), 401, "caller.bad-header")


def test_a_token_counts_in_its_header_alone(wire, token_of):
    token = token_of("operator")
    for answer in (
        wire.get("/v1/tokens", params={"token": token, "access_token": token}),
        wire.get("/v1/tokens", headers={"Cookie": f"polo-session={token}"}),
        wire.get("/v1/tokens", headers={"X-Api-Key": token, "X-Forwarded-For": "127.0.0.1"}),
    ):
        refused(answer, 401, "caller.missing")


def test_another_prover_gets_nowhere(wire, chain, registry):
    other = live_chain.identity(2)
    live_chain.enrol(registry, other)
    body = chain.entry().to_bytes()
    headers = signed(other, registry.clock, "POST", chain.path, body)
    refused(wire.post(chain.path, content=body, headers=headers), 403, "enrolment.not-yours")
    for what in ("close", "withdraw"):
        path = f"/v1/enrolments/{chain.id}/{what}"
        headers = signed(other, registry.clock, "POST", path)
        refused(wire.post(path, headers=headers), 403, "enrolment.not-yours")
    path = f"/v1/enrolments/{chain.id}/secret"
    answer = wire.get(path, headers=signed(other, registry.clock, "GET", path))
    refused(answer, 403, "enrolment.not-yours")
    # Nor does the owner see κ while the chain is open: it would know all nonces to come.
    answer = wire.get(path, headers=signed(chain.prover, registry.clock, "GET", path))
    refused(answer, 409, "enrolment.open")
    # Of what was committed, others see no nonce.
    shown = wire.get(f"{chain.path}/0").json()
    assert shown["nonce"] is None


# --- races ----------------------------------------------------------------------------------------


def test_racing_commits_of_one_shard(wire, chain):
    entries = [chain.entry(1, steps=number) for number in range(1, 13)]

    def commit(entry):
        body = entry.to_bytes()
        return entry, wire.post(chain.path, content=body, headers=chain.headers(body))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(commit, entries))
    won = [(entry, answer) for entry, answer in answers if answer.status_code == 200]
    assert len(won) == 1
    for _, answer in answers:
        if answer is not won[0][1]:
            refused(answer, 409, "commitment.differs")
    chain.accept(won[0][0], won[0][1].json())


def test_racing_retries_get_one_receipt(wire, chain):
    body = chain.entry().to_bytes()

    def commit(_):
        return wire.post(chain.path, content=body, headers=chain.headers(body)).json()

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(commit, range(24)))
    assert len({str(answer["receipt"]) for answer in answers}) == 1
    assert len({str(answer["nonce"]) for answer in answers}) == 1
    chain.accept(chain.entry(), answers[0])


def test_racing_registrations_make_one_identity(wire, registry):
    prover = live_chain.identity(3)
    body = b'{"name":"twice"}'

    def register(_):
        headers = signed(prover, registry.clock, "POST", "/v1/identities", body)
        headers["Content-Type"] = "application/json"
        return wire.post("/v1/identities", content=body, headers=headers).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(register, range(16)))
    assert set(codes) <= {201, 409}
    with registry.database.read() as connection:
        rows = connection.execute(
            select(identities).where(identities.c.key == prover.public_key)
        ).all()
    assert len(rows) == 1


# --- bodies ---------------------------------------------------------------------------------------

HEAD = b"POST /v1/identities HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_a_slow_body_is_cut_off(served):
    begun = time.monotonic()
    got = conversation(served, HEAD + b"Content-Length: 9000\r\n\r\n", *[b"x"] * 20, pause=0.2)
    assert time.monotonic() - begun < 10
    assert b" 408 " in got.split(b"\r\n")[0]
    assert b"body.slow" in got


def test_a_slow_head_is_cut_off(served):
    begun = time.monotonic()
    got = conversation(served, b"GET /healthz HTTP/1.1\r\n", *[b"X: y\r\n"] * 40, pause=0.2)
    assert time.monotonic() - begun < 12
    assert b" 200 " not in got


def test_many_slow_connections_do_not_stop_others(served, wire):
    host = urlsplit(served)
    lines = [socket.create_connection((host.hostname, host.port)) for _ in range(200)]
    try:
        for line in lines:
            line.sendall(b"POST /v1/identities HTTP/1.1\r\nHost: x\r\nContent-Le")
        begun = time.monotonic()
        assert wire.get("/readyz").status_code == 200
        assert time.monotonic() - begun < 5
    finally:
        for line in lines:
            line.close()


def test_a_body_that_says_it_is_too_large(served):
    got = conversation(served, HEAD + b"Content-Length: 999999999999\r\n\r\n", b"{")
    assert b" 413 " in got.split(b"\r\n")[0]
    assert b"body.too-large" in got


def test_a_body_that_turns_out_too_large(served):
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    got = conversation(served, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 40)
    assert b" 413 " in got.split(b"\r\n")[0]


def test_a_body_that_never_ends_well(served):
    got = conversation(
        served, HEAD + b"Content-Length: 100\r\nConnection: close\r\n\r\n{", longest=15
    )
    assert b" 408 " in got.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"name":' + b"9" * 6000 + b"}",
        b'{"name":1e400}',
        b'{"name":NaN}',
        b'{"name":"\\ud800"}',
        b'{"name":"a\\u0000b"}',
        b'{"name":"\xff\xfe"}',
        b'{"name":"' + b"n" * 129 + b'"}',
        b'{"name":"x","role":"operator"}',
        b'{"name":["x"]}',
        b"null",
        b"",
        b"\xef\xbb\xbf{}",
        b'{"name":"x","name":"y"} trailing',
    ],
    ids=range(15),
)
def test_odd_json(wire, registry, body):
    prover = live_chain.identity(4)
    headers = signed(prover, registry.clock, "POST", "/v1/identities", body)
    headers["Content-Type"] = "application/json"
    answer = wire.post("/v1/identities", content=body, headers=headers)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"] in ("body.invalid", "body.broken")


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"[" * 60_000,
        lambda body: body.replace(b'"steps":1', b'"steps":1.0'),
        lambda body: body.replace(b'"steps":1', b'"steps":' + b"9" * 5000),
        lambda body: body.replace(b'"steps":1', b'"steps":-1'),
        lambda body: body.replace(b'"epochs":1', b'"epochs":1,"epochs":1'),
        lambda body: body + b"\n",
        lambda body: body[:-1],
        lambda body: b"\xff" + body,
        lambda body: b"",
    ],
    ids=range(9),
)
def test_odd_entries(wire, chain, change):
    body = change(chain.entry(1).to_bytes())
    answer = wire.post(chain.path, content=body, headers=chain.headers(body))
    refused(answer, 422, "commitment.broken")


@pytest.mark.parametrize("name", ["\u202e evil", "\u0085", "a\u2028b", "\x7f", "\t"])
def test_names_that_would_act_on_a_page_or_a_log(wire, registry, name):
    """Names are anybody's: they are refused, or stay what they are in one line."""
    prover = live_chain.identity(5)
    body = json.dumps({"name": name}).encode()
    headers = signed(prover, registry.clock, "POST", "/v1/identities", body)
    headers["Content-Type"] = "application/json"
    answer = wire.post("/v1/identities", content=body, headers=headers)
    refused(answer, 422, "body.invalid")


# --- files ----------------------------------------------------------------------------------------


def begin_upload(wire, chain, registry, data, digest, kind="record"):
    asked = {"enrolment": chain.id, "kind": kind, "shard": 1, "size": len(data), "sha256": digest}
    body = json.dumps(asked).encode()
    headers = signed(chain.prover, registry.clock, "POST", "/v1/uploads", body)
    headers["Content-Type"] = "application/json"
    return wire.post("/v1/uploads", content=body, headers=headers)


def test_bytes_of_another_digest(wire, chain, registry):
    data = b"not what was said"
    digest = hashlib.sha256(b"something else").hexdigest()
    begun = begin_upload(wire, chain, registry, data, digest, kind="opening")
    assert begun.status_code == 201, begun.text
    path = f"/v1/uploads/{begun.json()['id']}"
    headers = {**signed(chain.prover, registry.clock, "PATCH", path, data), "Upload-Offset": "0"}
    refused(wire.patch(path, content=data, headers=headers), 422, "upload.wrong-digest")
    assert not registry.objects.exists(f"sha256/{digest[:2]}/{digest}")


@pytest.mark.parametrize(
    "digest", ["../" * 21 + "x", "A" * 64, "0" * 63, "%2e%2e", "a" * 64 + "\n"]
)
def test_digests_that_are_paths(wire, chain, registry, digest):
    refused(begin_upload(wire, chain, registry, b"x", digest), 422, "body.invalid")


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/identities/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/identities/%00",
        "/v1/identities/" + "a" * 64 + "%0a",
        "/v1/identities/" + "A" * 64,
        "/v1/identities/%E2%98%83",
        "/v1/enrolments/" + "0" * 64 + "%00",
        "/v1/enrolments/" + "0" * 5000,
        "/v1/enrolments/..%5c..%5c",
        "/v1/uploads/" + "../" * 12,
        "/v1/uploads/%2e%2e%2fdata.key",
        "/v1/verifications/%2e%2e/report",
        "/log/tile/../../data.key",
        "/log/tile/%2e%2e/%2e%2e/data.key",
        "/log/tile/0/x" + "9" * 400,
        "/log/tile/64/000",
        "/log/tile/0/000.p/0",
        "/log/tile/entries/000.p/999999999999999999999",
        "/log/checkpoint/..",
        "/chains/%00",
        "/chains/%00/live",
        "/chains/" + "0" * 64 + "%0a",
        "/chains?before=%00",
        "/chains?before=" + "9" * 30 + "." + "0" * 64,
        "/log?before=" + "9" * 400,
        "/verifications/%00",
        "/whose/%00",
        "/static/..%2f..%2fdata.key",
        "/static/%2e%2e/%2e%2e/settings.py",
        "//etc/passwd",
        "/%2e%2e/%2e%2e/data.key",
        "/v1//identities",
        "/\u00ff",
    ],
)
def test_paths_lead_nowhere(served, wire, path):
    raw = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode("latin-1")
    got = conversation(served, raw)
    status = int(got.split(b" ")[1])
    assert status in (400, 401, 404, 405, 422), got[:300]
    for leak in (b"root:", b"Traceback", b"/site-packages/"):
        assert leak not in got


@pytest.mark.parametrize(
    "query",
    [
        "after=" + "9" * 400,
        "after=%00",
        "limit=-1",
        "limit=99999999999999999999",
        "limit=1e3",
        "after=-9223372036854775809",
        "limit=%F0%9F%90%8D",
    ],
)
def test_huge_and_odd_numbers(wire, chain, query):
    answer = wire.get(f"{chain.path}?{query}")
    refused(answer, 422, "body.invalid")
    for path in ("/v1/log/inclusion?index=9999999999999999999999&size=1", "/v1/log/inclusion"):
        refused(wire.get(path), 422, "body.invalid")
    answer = wire.get("/v1/log/consistency?old=5&new=1")
    assert answer.status_code in (404, 422)


# --- HTTP itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, 5000])
def test_header_floods(served, wire, count):
    flood = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 40) for number in range(count))
    got = conversation(
        served, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + flood, b"\r\n"
    )
    if count > 1000:
        assert b" 200 " not in got.split(b"\r\n")[0]


def test_one_endless_header(served):
    got = conversation(served, b"GET /healthz HTTP/1.1\r\nX: ", *[b"y" * 65536] * 8)
    assert b" 200 " not in got.split(b"\r\n")[0]


SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
ODD = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 36\r\n\r\n",
    "listed lengths": b"Content-Length: 0, 36\r\n\r\n",
    "a signed length": b"Content-Length: +0\r\n\r\n",
    "a hexadecimal length": b"Content-Length: 0x0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a huge length": b"Content-Length: 99999999999999999999999999\r\n\r\n",
    "an encoding that is not last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an odd encoding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 0\r\n\r\n",
    "a chunk of odd size": b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "a negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    "an endless chunk size": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n\r\n",
    "a NUL in a header": b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "a bare carriage return": b"X: a\rContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", ODD)
def test_no_request_hides_in_another(served, name):
    """A proxy may read such a request in another way: a second one must never come out of it."""
    got = conversation(served, HEAD + ODD[name] + SMUGGLED)
    assert b"ok\n" not in got, got
    assert got.count(b"HTTP/1.1 ") <= 1
    if got:
        assert 400 <= int(got.split(b" ")[1]) < 500


@pytest.mark.parametrize(
    "line",
    [
        b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"G\x00T /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 2000,
        bytes(4096),
    ],
    ids=range(6),
)
def test_no_http_at_all(served, line):
    got = conversation(served, line)
    assert b" 200 " not in got.split(b"\r\n")[0]


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PUT", "PROPFIND", "OPTIONS"])
def test_other_methods(served, method):
    raw = f"{method} /v1/identities HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    got = conversation(served, raw)
    assert int(got.split(b" ")[1]) in (400, 404, 405)


def test_where_somebody_says_they_come_from_is_not_believed(registry, wire):
    """Only the settings name proxies: a made-up address must not spare anybody their limit."""
    wire.get("/log/checkpoint", headers={"X-Forwarded-For": "203.0.113.7"})
    assert list(registry.limits.addresses._buckets) == ["127.0.0.1"]
