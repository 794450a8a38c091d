"""The chance of a reading, against exact integers."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polo.protocol.detection import MILLION, Reading, log2_tail


def outcomes(bits, matches):
    """How many of the 2^bits outcomes have at least so many matches."""
    return sum(math.comb(bits, k) for k in range(matches, bits + 1))


def exact(bits, matches):
    """log2 of the tail, without cancellation near zero."""
    found = outcomes(bits, matches)
    if 2 * found > 2**bits:
        below = Fraction(2**bits - found, 2**bits)
        return math.log1p(-float(below)) / math.log(2)
    return math.log2(found) - bits


@pytest.mark.parametrize("bits", [8, 9, 16, 64, 100, 128, 129])
def test_every_tail_of_some_sizes(bits):
    for matches in range(bits + 1):
        assert log2_tail(bits, matches) == pytest.approx(exact(bits, matches), rel=1e-9, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(8, 3000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_tails_of_any_size(case):
    assert log2_tail(*case) == pytest.approx(exact(*case), rel=1e-9, abs=1e-9)


def test_the_largest_mark():
    bits, matches = 2**17, 66_000
    term = total = math.comb(bits, matches)
    for k in range(matches, matches + 3000):
        term = term * (bits - k) // (k + 1)
        total += term
    assert log2_tail(bits, matches) == pytest.approx(math.log2(total) - bits, abs=1e-6)


def test_a_rate_alone_misleads():
    assert log2_tail(128, math.ceil(0.70 * 128)) == pytest.approx(-19, abs=1)
    assert log2_tail(2048, math.ceil(0.70 * 2048)) == pytest.approx(-249, abs=1)


def test_a_tail_falls_as_matches_rise():
    tails = [log2_tail(256, matches) for matches in range(257)]
    assert tails == sorted(tails, reverse=True)
    assert tails[0] == 0
    assert tails[256] == -256
    assert all(tail <= 0 for tail in tails)


@pytest.mark.parametrize(("bits", "matches"), [(8, -1), (8, 9), (0, 1)])
def test_readings_that_cannot_be(bits, matches):
    with pytest.raises(ValueError, match="matches of"):
        log2_tail(bits, matches)


@settings(max_examples=100, deadline=None)
@given(st.integers(8, 2**17), st.integers(0, MILLION), st.data())
def test_the_rate_is_compared_in_integers(bits, eta, data):
    matches = data.draw(st.integers(0, bits))
    assert Reading(bits, matches).reaches(eta) is (
        Fraction(matches, bits) >= Fraction(eta, MILLION)
    )


def test_a_rate_that_is_met_exactly_counts():
    assert Reading(1000, 700).reaches(700_000)
    assert not Reading(1000, 699).reaches(700_000)
    # In floats 0.29 * 100 is 28.999999999999996.
    assert Reading(100, 29).reaches(290_000)


@pytest.mark.parametrize(
    ("bits", "matches", "passes"),
    [
        (128, 90, False),  # the rate is there, the chance is 2^-19
        (128, 114, True),
        (2048, 1434, True),
        (2048, 1433, False),  # one bit below 0.70, though the chance is 2^-248
        (64, 64, True),  # exactly 2^-64
        (63, 63, False),  # as good as it gets, and not good enough
    ],
)
def test_both_rules_must_hold(bits, matches, passes):
    assert Reading(bits, matches).passes(700_000, -64) is passes


@pytest.mark.parametrize("bits", [9, 15, 17, 37, 45, 1001, 2999])
def test_a_chance_of_exactly_one_half_is_decided_exactly(bits):
    reading = Reading(bits, (bits + 1) // 2)
    assert outcomes(bits, reading.matches) == 2 ** (bits - 1)
    assert reading.rarer_than(-1)
    assert not reading.rarer_than(-2)
    assert not Reading(bits, reading.matches - 1).rarer_than(-1)


@settings(max_examples=100, deadline=None)
@given(st.integers(8, 600).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
def test_the_chance_is_compared_in_integers(case, data):
    bits, matches = case
    near = math.floor(exact(bits, matches))
    log2_p = min(0, data.draw(st.sampled_from([near - 1, near, near + 1, -64])))
    rare = Fraction(outcomes(bits, matches), 2**bits) <= Fraction(2) ** log2_p
    assert Reading(bits, matches).rarer_than(log2_p) is rare


def test_figures():
    reading = Reading(256, 192)
    assert reading.eta == 0.75
    assert reading.log2_p == pytest.approx(exact(256, 192))


def test_no_bits_show_nothing():
    nothing = Reading(0, 0)
    assert nothing.eta == nothing.log2_p == 0
    assert not nothing.reaches(0)
    assert not nothing.passes(0, 0)
