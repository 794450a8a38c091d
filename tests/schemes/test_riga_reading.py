"""RIGA reads exactly what two layers of integers say, whatever the weights."""

import contextlib
import hashlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import polo
from polo.errors import TermsError
from polo.protocol.detection import MILLION
from polo.protocol.layout import CHUNK_BYTES, Layout, Tensor
from polo.protocol.records import SchemeTerms
from polo.watermark import Mark, read, riga
from polo.watermark.ednn import are_small
from polo.watermark.mark import check_scheme
from polo.watermark.riga import Riga, directions, hidden_units

Array = np.ndarray[Any, Any]


def mark_of(
    bits: int = 64, blocks: int = 2, *, block: int = 256, key: str = "block", seed: bytes = b"s"
) -> Mark:
    load = -(-bits * 1_000_000 // (blocks * block))
    terms = SchemeTerms("riga", bits, block, load, key, 1000, "sum", 1)
    assert terms.blocks == blocks
    return Mark(terms, tuple(range(blocks)), hashlib.sha256(seed).digest())


def stream(seed: bytes, label: str, index: int, size: int) -> bytes:
    name = label.encode()
    start = bytes([len(name)]) + name + seed + index.to_bytes(4, "little")
    return hashlib.shake_256(start).digest(size)


def plain_layers(mark: Mark, group: int) -> tuple[list[list[int]], list[list[int]]]:
    """X₁ and X₂ by the words of the specification, a sign at a time."""
    units, weights = max(64, 2 * mark.group_bits), mark.group_weights
    data = stream(mark.seed, "polo/riga-hidden/1", group, units * weights // 8)
    flat = [1 if data[at // 8] >> (at % 8) & 1 else -1 for at in range(units * weights)]
    first = [flat[row * weights : (row + 1) * weights] for row in range(units)]
    second = []
    for row in range(mark.group_bits):
        words = stream(mark.seed, "polo/riga-out/1", group * mark.group_bits + row, 8 * units)
        ranked = sorted(
            range(units), key=lambda at: (int.from_bytes(words[8 * at : 8 * at + 8], "little"), at)
        )
        plus = set(ranked[: units // 2])
        second.append([1 if at in plus else -1 for at in range(units)])
    return first, second


def plain_sums(mark: Mark, group: int, values: Array) -> list[int]:
    """The bits' sums in Python's integers, which have no width."""
    first, second = plain_layers(mark, group)
    weights = [max(-(2**48), min(2**48, round(Fraction(float(v)) * 2**40))) for v in values]
    hidden = [sum(s * w for s, w in zip(row, weights, strict=True)) for row in first]
    active = [z if z >= 0 else z // 8 for z in hidden]
    return [sum(s * a for s, a in zip(row, active, strict=True)) for row in second]


def plain_matches(mark: Mark, values: Array) -> list[list[bool]]:
    grouped = values.reshape(mark.groups, -1)
    return [
        [
            total > 0 if bit else total < 0
            for total, bit in zip(plain_sums(mark, g, row), mark.bits[g], strict=True)
        ]
        for g, row in enumerate(grouped)
    ]


def weights_of(kind: str, shape: tuple[int, int]) -> Array:
    random = np.random.default_rng(5)
    if kind == "trained":
        return random.normal(size=shape) * 0.05
    if kind == "every size":
        return np.ldexp(random.normal(size=shape), random.integers(-60, 12, shape))
    if kind == "saturated":
        return random.choice([-1e300, -257.0, -256.0, 256.0, 300.0, 1e30], shape)
    if kind == "heavy":
        # Every bit of the fixed point in use, as large as weights count.
        return random.uniform(255, 256, shape) * random.choice([-1, 1], shape)
    if kind == "between":
        # The first layer's sums are small enough for one product, the second's are not.
        return random.uniform(100, 120, shape) * random.choice([-1, 1], shape)
    if kind == "one unit":
        return np.where(np.arange(shape[0] * shape[1]).reshape(shape) % 97, 0.0, 2.0**-40)
    return random.choice([2.0**-40, -(2.0**-40), 2.0**-41, -3 * 2.0**-41, 0.0, -0.0], shape)


KINDS = ["trained", "every size", "saturated", "heavy", "between", "one unit", "few units"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["block", "dense"])
def test_every_bit_is_what_plain_integers_say(kind: str, key: str) -> None:
    mark = mark_of(32, 2, block=64, key=key)
    values = weights_of(kind, (2, 64))
    assert Riga().matches(mark, values, range(mark.groups)).tolist() == plain_matches(mark, values)


def test_weights_between_take_one_product_and_then_two(monkeypatch: pytest.MonkeyPatch) -> None:
    small = list[bool]()

    def noted(units: Array) -> bool:
        small.append(are_small(units))
        return small[-1]

    monkeypatch.setattr("polo.watermark.ednn.are_small", noted)
    monkeypatch.setattr("polo.watermark.riga.are_small", noted)
    mark = mark_of(32, 2, block=64)
    values = weights_of("between", (2, 64))
    assert Riga().matches(mark, values, range(2)).tolist() == plain_matches(mark, values)
    assert small == [True, False]


def test_some_groups_read_as_they_do_among_all() -> None:
    mark = mark_of(64, 4, block=64)
    values = weights_of("trained", (4, 64))
    every = Riga().matches(mark, values, range(4))
    for groups in ([3, 1], [2], range(1, 3), [0, 1, 2, 3]):
        found = Riga().matches(mark, values[list(groups)], groups)
        assert found.tolist() == every[list(groups)].tolist()


def test_both_layers_are_signs_as_they_are_drawn() -> None:
    mark = mark_of(32, 2, block=64)
    hidden, out = riga.layers(mark)
    for group in range(2):
        first, second = plain_layers(mark, group)
        assert (hidden[group].tolist(), out[group].tolist()) == (first, second)


@pytest.mark.parametrize("block", [16, 2048])
def test_blocks_of_any_size(block: int) -> None:
    mark = mark_of(8, 1, block=block)
    for kind in KINDS:
        values = weights_of(kind, (1, block))
        assert Riga().matches(mark, values, [0]).tolist() == plain_matches(mark, values)


@pytest.mark.parametrize("block", [256, 2048])
def test_the_largest_sums_there_are(block: int) -> None:
    """Saturated weights that agree with what a bit or a hidden unit wants."""
    mark = mark_of(8, 1, block=block)
    first, second = plain_layers(mark, 0)
    agreeing = np.sign(np.array(second[0]) @ np.array(first)).astype(float)
    for values in (agreeing * 300, agreeing * -300, np.array(first[3]) * 256.0):
        expected = [(s > 0) - (s < 0) for s in plain_sums(mark, 0, values)]
        units = np.clip(np.rint(values * 2.0**40), -(2.0**48), 2.0**48).astype(np.int64)
        assert directions(mark, 0, units).tolist() == expected
    assert max(map(abs, plain_sums(mark, 0, agreeing * 300))) > block * 2**48


def test_sums_beyond_64_bits_keep_their_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """All hidden units as large as they can be, in a row that adds them all up."""
    from polo.watermark import riga

    mark = mark_of(8, 8, block=2048, key="dense")
    weights = mark.group_weights
    signs = np.ones((64, weights), dtype=np.int8)
    signs[32:] = -1
    rows = np.ones((8, 64), dtype=np.int8)
    rows[:, 32:] = -1
    rows[1] = -rows[0]
    monkeypatch.setattr(riga, "hidden_parts", lambda *_: iter([signs]))
    monkeypatch.setattr(riga, "out_parts", lambda *_: iter([rows]))
    found = directions(mark, 0, np.full(weights, 2**48, dtype=np.int64))
    assert 32 * weights * 2**48 * 9 // 8 > 2**63
    assert found.tolist() == [1, -1, 1, 1, 1, 1, 1, 1]


def test_negative_units_are_divided_by_eight_and_rounded_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """z = -1 becomes -1 and not 0: the bit that subtracts it reads 1."""
    from polo.watermark import riga

    mark = mark_of(8, 1)
    signs = np.full((64, 256), 1, dtype=np.int8)
    rows = np.full((8, 64), -1, dtype=np.int8)
    rows[1] = 1
    monkeypatch.setattr(riga, "hidden_parts", lambda *_: iter([signs]))
    monkeypatch.setattr(riga, "out_parts", lambda *_: iter([rows]))
    units = np.zeros(256, dtype=np.int64)
    for weight, expected in ((-1, [1, -1]), (0, [0, 0]), (1, [-1, 1]), (-8, [1, -1])):
        units[7] = weight
        assert directions(mark, 0, units).tolist()[:2] == expected


def test_rows_are_balanced_and_hidden_units_suffice() -> None:
    for bits, blocks, key in ((64, 2, "block"), (128, 1, "block"), (64, 2, "dense")):
        mark = mark_of(bits, blocks, key=key)
        _, second = plain_layers(mark, 0)
        assert all(sum(row) == 0 for row in second)
        assert hidden_units(mark) == max(64, 2 * mark.group_bits)


def test_of_equal_words_those_that_come_first_have_plus(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = mark_of(64, 2)
    words = np.arange(64, dtype="<u8")
    words[10:50] = 10  # 10 below, 40 alike, of which 22 have plus
    rows = np.stack([words, words[::-1], np.zeros(64, "<u8"), np.arange(64, dtype="<u8")])
    monkeypatch.setattr(riga, "_words", lambda *_: rows)
    (signs,) = riga.out_parts(mark, 0)
    expected = -np.ones((4, 64), int)
    expected[0, :32], expected[1, 14:36], expected[1, 54:] = 1, 1, 1
    expected[2, :32] = expected[3, :32] = 1
    assert np.array_equal(signs, expected)


def test_groups_can_be_read_alone_and_in_any_order() -> None:
    mark = mark_of(96, 3)
    values = weights_of("trained", (3, 256))
    whole = Riga().matches(mark, values, range(3))
    assert np.array_equal(Riga().matches(mark, values[[2, 0]], [2, 0]), whole[[2, 0]])


def test_a_sum_of_zero_matches_neither_bit() -> None:
    mark = mark_of()
    assert mark.bits.any()
    assert not mark.bits.all()
    assert read(mark, np.zeros((2, 256))).matches == 0


@pytest.mark.parametrize("kind", ["trained", "all positive", "one weight rules", "another's"])
def test_unmarked_weights_match_like_fair_coins(kind: str) -> None:
    random = np.random.default_rng(11)
    values = random.normal(size=(4, 256)) * 0.05
    if kind == "all positive":
        values = np.abs(values)
    elif kind == "one weight rules":
        values[:, 3] = 10
    elif kind == "another's":
        other = mark_of(128, 4, seed=b"another")
        for group in range(4):
            first, second = (np.array(layer) for layer in plain_layers(other, group))
            values[group] += 0.01 * (np.where(other.bits[group], 1, -1) @ second @ first) / 8
        assert read(other, values).matches > 105
    seeds, bits = 150, 128
    found = np.array(
        [read(mark_of(bits, 4, seed=b"%d" % at), values).matches for at in range(seeds)]
    )
    assert abs(found.sum() - seeds * bits / 2) < 4.5 * (seeds * bits / 4) ** 0.5
    assert abs(found.var(ddof=1) / (bits / 4) - 1) < 4.5 * (2 / (seeds - 1)) ** 0.5


def test_single_bits_do_not_lean_to_one_value() -> None:
    """Balance of X₂: over keys each value comes up equally often, also for one-sided weights."""
    values = np.abs(np.random.default_rng(3).normal(size=256))
    units = np.rint(values * 2.0**40).astype(np.int64)
    ones = sum(
        int((directions(mark_of(32, 1, seed=b"lean %d" % at), 0, units) > 0).sum())
        for at in range(200)
    )
    # Bits of one key share their hidden units, so the spread is a little wider than a coin's.
    assert abs(ones - 3200) < 400


@pytest.mark.parametrize(
    ("bits", "block", "load", "key", "fine"),
    [
        (2048, 256, 0.125, "dense", True),
        (2048, 2048, 1.0, "block", True),
        (2**17, 256, 0.125, "block", True),
        (4096, 256, 0.25, "dense", False),
        (4096, 2048, 1.0, "block", False),
    ],
)
def test_marks_that_take_long_to_read_are_refused(
    bits: int, block: int, load: float, key: str, fine: bool
) -> None:
    terms = SchemeTerms("riga", bits, block, round(load * MILLION), key, 1000, "sum", 1)
    terms.check("terms")
    with contextlib.nullcontext() if fine else pytest.raises(TermsError, match="words of key"):
        check_scheme(terms)
    layout = Layout(CHUNK_BYTES, (Tensor("w", "F32", (terms.blocks, block)),), ())
    with contextlib.nullcontext() if fine else pytest.raises(TermsError, match="use block keys"):
        polo.make_terms(layout, scheme="riga", bits=bits, block=block, load=load, key=key)
