"""Signed requests, as both sides must see them."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polo.errors import FormatError
from polo.keys import Ed25519Verifier
from polo.protocol import requests

NONCE = bytes(range(16))


def test_the_message_is_what_the_specification_says():
    digest = hashlib.sha256(b"{}").hexdigest()
    expected = (
        f"polo request 1\nPOST\npolo.example/log\n/v1/x?a=b\n{digest}\n1800000000\n{NONCE.hex()}"
    )
    made = requests.message(
        "POST", "polo.example/log", "/v1/x?a=b", requests.body_digest(b"{}"), 1_800_000_000, NONCE
    )
    assert made == expected.encode()


def test_a_header_comes_back_as_it_was(alice):
    header = requests.sign(alice, "GET", "o", "/p", b"", time=7, nonce=NONCE)
    read = requests.Authorization.parse(header)
    assert read.header() == header
    assert (read.key, read.time, read.nonce) == (alice.public_key, 7, NONCE)
    message = requests.message("GET", "o", "/p", requests.body_digest(b""), 7, NONCE)
    assert Ed25519Verifier().verify(read.key, message, read.signature)


@pytest.mark.parametrize(
    "change",
    [
        ("PoLO ", "polo "),
        ("PoLO ", "PoLO  "),
        ("key=", "Key="),
        (",nonce", ", nonce"),
        ("time=7", "time=07"),
        ("time=7", "time=-7"),
        ("time=7", "time=7.0"),
        ("time=7", "time=" + "9" * 16),
        ("signature=", "signature=00"),
        ("key=8", "key=G"),
    ],
)
def test_there_is_one_way_to_write_it(alice, change):
    header = requests.sign(alice, "GET", "o", "/p", b"", time=7, nonce=NONCE)
    changed = header.replace(*change)
    assert changed != header
    with pytest.raises(FormatError):
        requests.Authorization.parse(changed)


@given(st.text(max_size=600))
def test_no_text_does_more_than_be_refused(text):
    with pytest.raises(FormatError):
        requests.Authorization.parse(text)


@pytest.mark.parametrize(
    ("method", "origin", "target"),
    [
        ("get", "o", "/"),
        ("GET\nx", "o", "/"),
        ("", "o", "/"),
        ("GET", "o\n/v1", "/"),
        ("GET", "", "/"),
        ("GET", "o", "v1"),
        ("GET", "o", "/a\nb"),
        ("GET", "o", "/a b"),
        ("GET", "o", "/é"),
        ("GET", "o", "/" + "a" * requests.MAX_TARGET),
    ],
)
def test_nothing_can_shift_the_lines(method, origin, target):
    with pytest.raises(FormatError):
        requests.message(method, origin, target, bytes(32), 0, NONCE)


@pytest.mark.parametrize(
    ("time", "fresh"), [(-120, True), (120, True), (-121, False), (121, False)]
)
def test_old_and_early_requests_are_stale(time, fresh):
    assert requests.Authorization(bytes(32), 1000 + time, NONCE, bytes(64)).is_fresh(1000) is fresh
