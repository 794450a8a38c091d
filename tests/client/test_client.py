"""Requests of a client: signed each time anew, tried again or not, bounded, and readable errors."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import polo
from polo.client.client import Client
from polo.client.enrolled import Address, LiveEnrolment, load_enrolment
from polo.client.http import Patience, checked_url
from polo.errors import (
    DistrustError,
    MissingError,
    OutageError,
    RegistryError,
    SignatureError,
    StoreError,
    TermsError,
)
from polo.protocol import requests

QUICK = Patience(tries=4, first=0.001, most=0.002)
Handler = Callable[[httpx2.Request], httpx2.Response]


class Script:
    """Answers requests one after the other, and keeps them."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        return answering(200, json.dumps(answer).encode())


def answering(status: int, content: bytes = b"", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, headers=named, stream=httpx2.ByteStream(content))


def client_of(handler: Handler, identity: Any = None, **options: Any) -> Client:
    transport = httpx2.MockTransport(handler)
    settings = {"origin": "registry.test/log", "patience": QUICK, **options}
    return Client("http://registry.test", identity, transport=transport, **settings)


def problem(status: int, code: str, detail: str = "no", **headers: str) -> httpx2.Response:
    body = {"code": code, "detail": detail, "advice": "do this"}
    kind = {"content_type": "application/problem+json"}
    return answering(status, json.dumps(body).encode(), **kind, **headers)


def test_it_tries_again_while_the_registry_is_away(alice: polo.Identity) -> None:
    script = Script(
        httpx2.ConnectError("refused"),
        problem(503, "registry.busy"),
        problem(429, "rate.exceeded", retry_after="0"),
        {"id": "x"},
    )
    assert client_of(script, alice).identity("x") == {"id": "x"}
    given = [requests.Authorization.parse(item.headers["authorization"]) for item in script.seen]
    assert len({item.nonce for item in given}) == 4, "a signature holds once"


def test_it_gives_up_after_the_last_try(alice: polo.Identity) -> None:
    script = Script(*(problem(503, "registry.busy") for _ in range(9)))
    with pytest.raises(OutageError, match="no") as away:
        client_of(script, alice).identity("x")
    assert (away.value.code, away.value.status) == ("registry.busy", 503)
    assert len(script.seen) == QUICK.tries


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_a_refusal_is_final(alice: polo.Identity, status: int) -> None:
    script = Script(problem(status, "enrolment.closed", "it is closed"))
    with pytest.raises(RegistryError, match="it is closed") as refused:
        client_of(script, alice).identity("x")
    assert refused.value.code == "enrolment.closed"
    assert refused.value.advice == "do this"
    assert len(script.seen) == 1


def test_signatures_hold_for_what_is_sent(alice: polo.Identity) -> None:
    from polo.keys import Ed25519Verifier

    script = Script({"items": [{"id": 1}], "next": "a b"}, {"items": [], "next": None})
    client = client_of(script, alice)
    assert list(client.enrolments()) == [{"id": 1}]
    for request in script.seen:
        given = requests.Authorization.parse(request.headers["authorization"])
        message = requests.message(
            request.method,
            "registry.test/log",
            request.url.raw_path.decode(),
            requests.body_digest(request.content),
            given.time,
            given.nonce,
        )
        assert Ed25519Verifier().verify(alice.public_key, message, given.signature)
    assert b"after=a+b" in script.seen[1].url.raw_path


def test_the_origin_is_asked_for_once(alice: polo.Identity) -> None:
    script = Script({"origin": "registry.test/log"}, {"id": "x"}, {"id": "y"})
    client = client_of(script, alice, origin=None)
    client.identity("x")
    client.identity("y")
    assert [item.url.path for item in script.seen].count("/v1/keys") == 1
    assert "authorization" not in script.seen[0].headers


def test_without_a_key_nothing_is_signed() -> None:
    script = Script({"id": "x"})
    assert client_of(script).enrolment("x") == {"id": "x"}
    assert "authorization" not in script.seen[0].headers


@pytest.mark.parametrize(
    "answer",
    [
        answering(200, b"<html>"),
        answering(200, b"[]"),
        answering(200, b"[" * 100_000),
        answering(200, b"x", content_encoding="br"),
        answering(200, bytes(9 * 1024 * 1024)),
    ],
    ids=["html", "list", "deep", "packed", "large"],
)
def test_answers_that_no_registry_gives(answer: httpx2.Response) -> None:
    with pytest.raises(DistrustError) as found:
        client_of(Script(answer)).enrolment("x")
    assert found.value.code == "registry.malformed"


def test_a_redirect_is_not_followed() -> None:
    script = Script(answering(302, location="http://evil.test/"))
    with pytest.raises(RegistryError, match="302"):
        client_of(script).enrolment("x")
    assert len(script.seen) == 1


def test_what_a_registry_says_cannot_act_on_a_terminal() -> None:
    script = Script(problem(422, "body.invalid", "\x1b[2Jgone"))
    with pytest.raises(RegistryError) as refused:
        client_of(script).enrolment("x")
    assert "\x1b" not in refused.value.diagnostics()


@pytest.mark.parametrize("url", ["registry.example", "ftp://x", "http://", "http://x/?a=1", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(RegistryError, match="no address"):
        checked_url(url)


def test_an_address_with_a_password() -> None:
    with pytest.raises(SignatureError, match="password") as refused:
        checked_url("https://me:secret@registry.example")
    assert "secret" not in str(refused.value)


def test_without_httpx2(monkeypatch: pytest.MonkeyPatch, alice: polo.Identity) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingError) as missing:
        Client("http://registry.test", alice)
    assert "polo-proof[client]" in missing.value.advice


# Uploads


def upload(client: Client, path: Path) -> str:
    return client.upload(path, enrolment="e" * 64, kind="opening", shard=1)


def test_an_upload_goes_on_where_it_stopped(
    tmp_path: Path, alice: polo.Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polo.client.uploads.PIECE", 4)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    script = Script(
        {"id": "u", "received": 2},
        {"received": 6},
        # The piece arrived, and its answer did not: the next try is refused, and asked about.
        httpx2.ReadError("gone"),
        problem(409, "upload.offset"),
        {"received": 10},
    )
    assert upload(client_of(script, alice), path) == "u"
    sent = [(item.headers["upload-offset"], item.content) for item in script.seen[1:4]]
    assert sent == [("2", b"2345"), ("6", b"6789"), ("6", b"6789")]


@pytest.mark.parametrize("received", [11, -1, "3", None])
def test_impossible_uploads(tmp_path: Path, alice: polo.Identity, received: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with pytest.raises(DistrustError, match="impossible"):
        upload(client_of(Script({"id": "u", "received": received}), alice), path)


def test_an_upload_that_gets_nowhere_ends(tmp_path: Path, alice: polo.Identity) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    script = Script({"id": "u", "received": 0}, *[{"received": 0}] * 20)
    with pytest.raises(polo.PoloError, match="takes no more"):
        upload(client_of(script, alice), path)


# The folder


def test_the_folder_is_checked(
    enrolled: Callable[..., LiveEnrolment], tmp_path: Path, registry: Any
) -> None:
    made = enrolled()
    assert isinstance(load_enrolment(made.folder), LiveEnrolment)
    with pytest.raises(StoreError, match="already"):
        made.save(made.folder)
    other = Address(registry.url, "other.test/log")
    with pytest.raises(SignatureError, match="the terms are for the registry"):
        LiveEnrolment(made.record, other).check()


def test_an_offline_enrolment_is_no_live_one(enrol: Callable[..., polo.OfflineEnrolment]) -> None:
    address = Address("http://registry.test", "registry.test/log")
    with pytest.raises(TermsError, match="issued offline"):
        LiveEnrolment(enrol().record, address).check()
