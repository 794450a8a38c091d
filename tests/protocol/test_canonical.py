"""Canonical JSON against another implementation of RFC 8785, and what is refused."""

import json

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from polo.errors import FormatError, LimitError
from polo.protocol import canonical

LARGEST = 2**53 - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-LARGEST, LARGEST) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def parse(data):
    return canonical.parse(data, place="document")


def nested(levels):
    return b"[" * levels + b"]" * levels


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_it_spells_like_another_implementation(value):
    assert canonical.encode(value) == rfc8785.dumps(value)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_what_is_written_is_read_back(value):
    assert parse(canonical.encode(value)) == value


@settings(max_examples=150, deadline=None)
@given(VALUES, st.data())
def test_no_second_spelling_of_a_document_is_read(value, data):
    written = canonical.encode(value)
    at = data.draw(st.integers(0, len(written)))
    change = data.draw(st.sampled_from(["insert", "drop", "turn"]))
    if change == "insert":
        other = written[:at] + data.draw(st.sampled_from([b" ", b"\n", b"0", b","])) + written[at:]
    elif change == "drop":
        other = written[:at] + written[at + 1 :]
    else:
        mask = data.draw(st.integers(1, 255))
        other = written[:at] + bytes(b ^ mask for b in written[at : at + 1]) + written[at + 1 :]
    try:
        found = parse(other)
    except FormatError:
        return
    # Another document may have come of it; then these are exactly its bytes.
    assert rfc8785.dumps(found) == other


@pytest.mark.parametrize(
    "text",
    ["1.0", "0.5", "1e3", "1E3", "-0", "-0.0", "NaN", "Infinity", "-Infinity", "1e400"],
)
def test_floats_are_refused(text):
    with pytest.raises(FormatError):
        parse(f"[{text}]".encode())


@pytest.mark.parametrize("value", [1.0, float("nan"), b"bytes", {1: 2}, {"a": {1, 2}}, object()])
def test_values_without_a_place_in_a_record_are_not_written(value):
    with pytest.raises(FormatError):
        canonical.encode(value)


@pytest.mark.parametrize("zeros", [16, 19, 400, 5000])
def test_huge_integers_are_refused(zeros):
    for sign in ("", "-"):
        with pytest.raises(FormatError):
            parse(f"[{sign}1{'0' * zeros}]".encode())
    with pytest.raises(FormatError):
        canonical.encode([10**zeros])


@pytest.mark.parametrize("number", [LARGEST + 1, -LARGEST - 1])
def test_the_first_integers_beyond_the_bounds_are_refused(number):
    with pytest.raises(FormatError):
        parse(f"[{number}]".encode())
    with pytest.raises(FormatError):
        canonical.encode([number])


def test_the_largest_integers_are_read():
    assert parse(f"[{LARGEST},{-LARGEST}]".encode()) == [LARGEST, -LARGEST]


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}', b'{"a":1,"a":2}', b'{"\\u0061":1}', b'{"a":1, "b":2}', b'{"a" :1}',
        b" {}", b"{}\n", b"\t[]", b'{"b":1,"a":2}', b"[1,]", b"[1 ]", b"'a'", b"// x\n{}",
    ],
)  # fmt: skip
def test_repetition_white_space_and_order(data):
    with pytest.raises(FormatError):
        parse(data)


def test_nesting():
    assert parse(nested(17)) == json.loads(nested(17))
    for levels in (18, 1000, 200_000):
        with pytest.raises(FormatError):
            parse(nested(levels))
    deep = []
    for _ in range(17):
        deep = [deep]
    with pytest.raises(LimitError):
        canonical.encode(deep)


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00x"', '{"\\ud83d":1}', '"\\ude00\\ud83d"'])
def test_lone_surrogates_are_refused(text):
    with pytest.raises(FormatError):
        parse(text.encode())
    with pytest.raises(FormatError):
        canonical.encode(json.loads(text))


def test_pairs_of_surrogates_are_one_character():
    assert canonical.encode(json.loads('"\\ud83d\\ude00"')) == '"😀"'.encode()


@pytest.mark.parametrize("data", [b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}"])
def test_other_encodings_are_refused(data):
    with pytest.raises(FormatError):
        parse(data)
    with pytest.raises(FormatError):
        parse("{}".encode("utf-16"))


def test_size_is_looked_at_before_anything_else():
    data = b'["' + b"a" * 96 + b'"]'
    assert canonical.parse(data, place="document", limit=100) == ["a" * 96]
    with pytest.raises(LimitError, match="100 bytes"):
        canonical.parse(data, place="document", limit=99)


def test_errors_name_the_document_and_the_byte():
    with pytest.raises(FormatError, match="byte 5") as error:
        canonical.parse(b'{"a": 1}', place="proof/manifest.json")
    assert error.value.place == "proof/manifest.json"
