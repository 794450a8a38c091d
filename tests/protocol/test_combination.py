"""Many marks become one number: Fisher's method, what is granted, and what is charged."""

import decimal
import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from polo.protocol.combination import (
    CLAIM_LOG2_P,
    GRINDING_BITS,
    ReadMark,
    combine,
    correct,
    log2_fisher,
    log2_selections,
)
from polo.protocol.detection import Reading, log2_tail


def live(bits: int, matches: int, shard: int = 1) -> ReadMark:
    return ReadMark(shard, Reading(bits, matches), True)


def offline(bits: int, matches: int, shard: int = 1) -> ReadMark:
    return ReadMark(shard, Reading(bits, matches), False)


@st.composite
def marks(draw: st.DrawFn, bits: int = 512) -> ReadMark:
    n = draw(st.integers(0, bits))
    return ReadMark(1, Reading(n, draw(st.integers(0, n))), draw(st.booleans()))


chains = st.lists(marks(), max_size=30)


@given(chains)
def test_the_result_is_a_chance(chain: list[ReadMark]) -> None:
    found = combine(chain)
    assert math.isfinite(found)
    assert found <= 0


@given(chains, st.randoms(use_true_random=False))
def test_the_order_of_marks_does_not_matter(chain: list[ReadMark], mixer: random.Random) -> None:
    shuffled = chain.copy()
    mixer.shuffle(shuffled)
    assert combine(shuffled) == combine(chain)


@given(chains)
def test_marks_of_which_nothing_could_be_read_do_not_count(chain: list[ReadMark]) -> None:
    nothing = [live(0, 0), offline(0, 0)]
    assert combine([*nothing, *chain, *nothing]) == combine(chain)
    assert combine(nothing) == combine([]) == 0


@given(chains, marks())
def test_one_more_match_never_weakens_a_claim(chain: list[ReadMark], mark: ReadMark) -> None:
    n, m = mark.reading.bits, mark.reading.matches
    if m < n:
        more = ReadMark(1, Reading(n, m + 1), mark.live)
        assert combine([*chain, more]) <= combine([*chain, mark]) + 1e-9


@given(st.integers(1, 2048).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_of_one_mark_the_chance_is_its_own(reading: tuple[int, int]) -> None:
    alone = log2_tail(*reading)
    assert combine([live(*reading)]) == pytest.approx(alone, rel=1e-12, abs=1e-12)
    granted = min(0.0, alone + GRINDING_BITS)
    assert combine([offline(*reading)]) == pytest.approx(granted, rel=1e-12, abs=1e-12)


def test_one_mark_is_exact_in_rational_arithmetic() -> None:
    for bits, matches in ((1, 1), (8, 5), (64, 40), (256, 200)):
        tail = sum(Fraction(math.comb(bits, k), 2**bits) for k in range(matches, bits + 1))
        assert 2.0 ** combine([live(bits, matches)]) == pytest.approx(float(tail), rel=1e-12)


@given(st.lists(st.floats(1e-30, 1.0), min_size=1, max_size=60))
def test_fisher_agrees_with_scipy(chances: list[float]) -> None:
    total = -math.fsum(map(math.log, chances))
    # SciPy's tail underflows far out; its logarithm does not.
    expected = stats.chi2.logsf(2 * total, 2 * len(chances)) / math.log(2)
    assert log2_fisher(total, len(chances)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    combined = stats.combine_pvalues(chances, method="fisher").pvalue
    if combined > 1e-290:
        expected = math.log2(combined)
        assert log2_fisher(total, len(chances)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("count", [1, 2, 100, 10_000, 100_000])
def test_fisher_agrees_with_scipy_for_as_many_marks_as_there_can_be(count: int) -> None:
    spread = math.sqrt(count)
    for total in (count * 0.2, count - spread, count, count + spread, count + 20 * spread):
        expected = stats.chi2.logsf(2 * total, 2 * count) / math.log(2)
        assert log2_fisher(total, count) == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("count", [1, 7, 100, 1000])
@pytest.mark.parametrize("each", [2, 33.0, 144.17, 9000.5])
def test_fisher_agrees_with_sixty_digits_where_scipy_underflows(count: int, each: float) -> None:
    with decimal.localcontext(prec=60):
        total = Decimal(each) * count
        term = tail = Decimal(1)
        for j in range(1, count):
            term *= total / j
            tail += term
        expected = float((tail.ln() - total) / Decimal(2).ln())
    assert log2_fisher(each * count, count) == pytest.approx(expected, rel=1e-12)


def test_the_longest_chain_of_the_longest_marks_overflows_nothing() -> None:
    chain = [live(131_072, 131_072)] * 10_000
    found = combine(chain)
    assert math.isfinite(found)
    assert -131_072 * 10_000 < found < -131_000 * 10_000 + 10_000 * 40


@given(st.integers(1, 500))
def test_all_chances_one_half_are_no_evidence(count: int) -> None:
    """They sum up to less than chance would: E[−ln p] is 1, and ln 2 is 0.69."""
    assert log2_fisher(count * math.log(2), count) > -1.01


@given(st.integers(1, 400), st.integers(1, 400))
def test_offline_marks_that_luck_could_grind_say_nothing(bits: int, count: int) -> None:
    """However many marks, as long as none of them beats the tries that were granted."""
    matches = next(m for m in range(bits, -1, -1) if log2_tail(bits, m) >= -GRINDING_BITS)
    assert combine([offline(bits, matches)] * count) == 0
    assert combine([live(bits, matches)] * count) <= 0


@given(chains)
def test_offline_is_never_stronger_than_live(chain: list[ReadMark]) -> None:
    as_live = [ReadMark(m.shard, m.reading, True) for m in chain]
    as_offline = [ReadMark(m.shard, m.reading, False) for m in chain]
    assert combine(as_live) <= combine(chain) + 1e-9
    assert combine(chain) <= combine(as_offline) + 1e-9


@given(st.floats(-1e6, 0), st.floats(0, 1e6))
def test_correction_adds_the_tries_and_stays_a_chance(chance: float, tries: float) -> None:
    corrected = correct(chance, tries)
    assert chance <= corrected <= 0
    assert corrected == min(0.0, chance + tries)


def test_a_correction_below_one_try_is_none() -> None:
    assert correct(-80.0, -20.0) == -80.0


# Selections


def test_showing_everything_is_one_try() -> None:
    assert [log2_selections(n, n) for n in (1, 8, 10_000)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("marks", [1, 2, 8, 50, 1000])
def test_all_selections_together_are_granted_half_a_try(marks: int) -> None:
    """Σ over all selections of 2^−charge: what a union bound over them costs."""
    granted = math.fsum(
        math.comb(marks, shown) * 2.0 ** -log2_selections(shown, marks) for shown in range(marks)
    )
    assert granted == pytest.approx(0.5)


def test_a_disclosure_of_two_marks_still_makes_a_claim() -> None:
    two = [offline(256, 250, shard) for shard in (3, 9)]
    assert correct(combine(two), log2_selections(2, 100)) < 4 * CLAIM_LOG2_P


def test_choosing_the_lucky_half_of_many_live_marks_is_paid_for() -> None:
    """On unmarked weights half of the marks read above one half; shown alone they would win."""
    drawing = random.Random(5)
    chain = [live(256, drawing.getrandbits(256).bit_count()) for _ in range(1000)]
    lucky = [mark for mark in chain if mark.reading.matches > 128]
    assert combine(chain) > -20
    assert combine(lucky) < CLAIM_LOG2_P
    assert correct(combine(lucky), log2_selections(len(lucky), len(chain))) > CLAIM_LOG2_P
